package host

import (
	"context"
	"slices"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// vendorGPUs is one vendor's reader and what one scan leaves for the next.
type vendorGPUs struct {
	*gpu.Reader
	// known are the last known identities, by PCI address.
	known map[string]machine.GPU
	// bus are the addresses of the last scan.
	bus []string
}

// readGPUs asks every vendor's driver, and the bus about what a driver does not
// report. A GPU that was known and no longer answers, or whose driver went away,
// keeps its identity and is Lost as long as the bus has it; one whose UUID was
// never read has no identity and is skipped.
func (h *Host) readGPUs(ctx context.Context, m *machine.Machine) {
	for _, v := range h.gpus {
		first := len(m.GPUs)
		v.read(ctx, m)
		// GPUs that left the bus were removed from the machine.
		for address := range v.known {
			if !slices.ContainsFunc(m.GPUs[first:], func(g machine.GPU) bool { return g.PCI == address }) {
				delete(v.known, address)
			}
		}
	}
}

func (v *vendorGPUs) read(ctx context.Context, m *machine.Machine) {
	bus := v.Vendor().Addresses(m.PCI)
	if v.bus != nil && !slices.Equal(bus, v.bus) {
		v.Reopen()
	}
	v.bus = bus
	found := v.Read(ctx)
	if m.Driver == (machine.Driver{}) {
		m.Driver = found.Driver
	}
	m.Probes = append(m.Probes, found.Probe)
	m.Skipped = append(m.Skipped, found.Skipped...)
	answered := map[string]bool{}
	for _, g := range found.GPUs {
		answered[g.PCI] = true
		m.GPUs = append(m.GPUs, g)
		g.Health = machine.Health{}
		v.known[g.PCI] = g
	}
	for _, address := range bus {
		if answered[address] {
			continue
		}
		reason := "on the PCI bus and unknown to the driver"
		if found.Probe.State != machine.ProbeOK {
			reason = found.Probe.Reason
		}
		g, known := v.known[address]
		if !known {
			m.Skipped = append(m.Skipped, machine.Skipped{Name: address, Reason: "GPU: " + reason})
			continue
		}
		g.Health = machine.Health{State: machine.Lost, Reason: reason}
		m.GPUs = append(m.GPUs, g)
	}
}
