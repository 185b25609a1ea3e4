package machine

import "fmt"

func (v *validator) gpu(field string, g *GPU) {
	if g.UUID == "" {
		v.addf(field+".uuid", "empty")
	}
	v.once(field+".uuid", "GPU ", g.UUID)
	v.address(field+".pci", g.PCI)
	v.once(field+".pci", "GPU at ", g.PCI)
	v.atLeast(field+".index", g.Index, 0)
	v.known(field+".minor", g.Minor)
	if g.MemoryMiB < 0 {
		v.addf(field+".memoryMiB", "%d is negative", g.MemoryMiB)
	}
	v.mig(field+".mig", &g.MIG)
	for j := range g.NVLinks {
		v.nvlink(fmt.Sprintf("%s.nvlinks[%d]", field, j), g.PCI, &g.NVLinks[j])
	}
	if g.Fabric != nil {
		switch g.Fabric.State {
		case FabricCompleted, FabricInProgress, FabricNotStarted:
		default:
			v.addf(field+".fabric.state", "%q is not completed, in-progress or not-started", g.Fabric.State)
		}
	}
	switch g.Health.State {
	case Healthy, Unhealthy, Lost:
	default:
		v.addf(field+".health.state", "%q is not healthy, unhealthy or lost", g.Health.State)
	}
}

func (v *validator) mig(field string, m *MIG) {
	switch {
	case m.Enabled && !m.Capable:
		v.addf(field, "enabled and not capable")
	case len(m.Devices) > 0 && !m.Enabled:
		v.addf(field, "has devices and is not enabled")
	}
	for j := range m.Devices {
		d := &m.Devices[j]
		at := fmt.Sprintf("%s.devices[%d]", field, j)
		if d.UUID == "" {
			v.addf(at+".uuid", "empty")
		}
		v.once(at+".uuid", "MIG device ", d.UUID)
		for _, n := range []struct {
			field string
			value int
		}{
			{"memoryMiB", int(d.MemoryMiB)},
			{"multiprocessors", d.Multiprocessors},
			{"gpuSlices", d.GPUSlices},
			{"computeSlices", d.ComputeSlices},
			{"copyEngines", d.CopyEngines},
			{"decoderEngines", d.DecoderEngines},
			{"encoderEngines", d.EncoderEngines},
			{"jpegEngines", d.JPEGEngines},
			{"ofaEngines", d.OFAEngines},
		} {
			v.atLeast(at+"."+n.field, n.value, 0)
		}
	}
}

func (v *validator) nvlink(field, self string, l *NVLink) {
	if l.Peer != PeerNVSwitch {
		v.address(field+".peer", l.Peer)
	}
	if l.Peer == self {
		v.addf(field+".peer", "%s is the GPU itself", l.Peer)
	}
	v.once(field+".peer", "link of "+self+" to ", l.Peer)
	v.atLeast(field+".links", l.Links, 1)
	if l.MBps != nil && *l.MBps < 0 {
		v.addf(field+".mbps", "%d is negative", *l.MBps)
	}
}
