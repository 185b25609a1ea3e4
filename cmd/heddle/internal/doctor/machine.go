package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/config/model"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/discovery/labels"
)

// Problems returns the problems of a machine, without asking anything else. missing are the labels that cannot be
// made.
func Problems(m *machine.Machine, c *config.NodeConfig, missing []labels.Problem) Findings {
	var l Findings
	l.machine(m, c, missing)
	all, problems := l.sorted()
	return all[:problems]
}

// machine explains a machine, in its order.
func (l *Findings) machine(m *machine.Machine, c *config.NodeConfig, missing []labels.Problem) {
	m = c.WithRoles(m)
	for _, p := range m.Probes {
		l.probe(m, p)
	}
	l.skipped(m)
	l.excused(m)
	// Checks that the configuration turns off are shown all the same.
	state := health.Of(m, time.Now())
	l.gpus(c.WithoutExcluded(m), state)
	l.hcas(m, state)
	l.stack(m)
	l.roles(m, &c.RDMA.Roles)
	for i := range m.GPUs {
		if reason := c.NotServed(m, &m.GPUs[i]); reason != "" {
			l.note("GPU "+m.GPUs[i].PCI, "", "%s: no pod gets it", reason)
		}
	}
	for _, p := range missing {
		remedy := ""
		if slices.ContainsFunc(c.Labels, func(r config.LabelRule) bool { return r.Key == p.Key }) {
			remedy = "Correct the rule in the configuration."
		}
		l.problem("label "+p.Key, remedy, "cannot be made: %s", p.Reason)
	}
}

// probe explains a reader that failed. An absent driver is a problem only if the bus has devices for it.
func (l *Findings) probe(m *machine.Machine, p machine.Probe) {
	remedy := "See that the path in the reason is mounted and readable: --sysfs-root, --proc-root."
	subject, present, others, own := "probe "+p.Name, "", false, false
	switch p.Name {
	case "rdma":
		remedy = "See that ib_core and the adapter's driver (mlx5_ib) are loaded: lsmod, dmesg."
	case "rdma-netlink":
		remedy = "See that ib_core is loaded, and that this program is in the host's network namespace."
	}
	for _, v := range host.Vendors() {
		on := len(v.OnBus(m.PCI))
		if v.Probe != p.Name {
			others = others || on > 0
			continue
		}
		own, remedy = true, v.Remedies.Driver
		if on > 0 {
			present = cli.Count(on, v.Name+" GPU")
		}
	}
	switch {
	case p.State == machine.ProbeFailed:
		l.problem(subject, remedy, "failed: %s", p.Reason)
	case p.State == machine.ProbeTimeout:
		l.problem(subject, remedy, "did not answer: %s; its values are from its last good answer", p.Reason)
	case p.State == machine.ProbeAbsent && present != "":
		l.problem(subject, remedy, "the driver is missing for devices on the PCI bus (%s): %s", present, p.Reason)
	case p.State == machine.ProbeAbsent && (!own || !others): // GPUs of one maker need no driver of another.
		l.note(subject, "", "nothing to read: %s", p.Reason)
	}
}

// skipped explains devices that could not be read. A part of a device may be missing without harm, and is a problem
// all the same, because no part of it should fail. A dead driver fails all GPUs for one reason.
func (l *Findings) skipped(m *machine.Machine) {
	var devices group
	for _, s := range m.Skipped {
		devices.add(s.Reason, s.Name)
	}
	for _, reason := range devices.order {
		remedy := "See dmesg for the device; if it works, the dump (heddle inspect -o json) makes a good bug report."
		for _, v := range host.Vendors() {
			answers := slices.ContainsFunc(m.Probes, func(p machine.Probe) bool {
				return p.Name == v.Probe && p.State == machine.ProbeOK
			})
			// One that its driver lost before it could be read.
			f := m.Function(devices.names[reason][0])
			if f != nil && answers && v.IsGPU(f) && m.GPUAt(f.Address) == nil {
				remedy = v.Remedies.Lost
			}
		}
		l.problem(devices.join(reason), remedy, "left out: %s", reason)
	}
}

// excused explains GPUs on the bus that are not for containers, and accelerators that heddle has no reader for: 3D
// controllers (class 0302), other display controllers (0380) and processing accelerators (12). A GPU may have
// dozens of virtual functions.
func (l *Findings) excused(m *machine.Machine) {
	var devices group
	for i := range m.PCI {
		f := &m.PCI[i]
		switch excuse := gpu.Excuse(f); {
		case host.Vendors().IsGPU(f):
			if excuse != "" && m.GPUAt(f.Address) == nil {
				devices.add(excuse+": no pod gets it", f.Address)
			}
		case f.PhysFn != "":
		case slices.ContainsFunc([]string{"0x0302", "0x0380", "0x12"}, func(class string) bool {
			return strings.HasPrefix(f.Class, class)
		}):
			devices.add(fmt.Sprintf("accelerators (PCI %s:%s) that heddle has no reader for: no resource has them",
				strings.TrimPrefix(f.Vendor, "0x"), strings.TrimPrefix(f.Device, "0x")), f.Address)
		}
	}
	for _, reason := range devices.order {
		l.note(devices.join(reason), "", "%s", reason)
	}
}

// gpus explains GPUs that are unhealthy, or differ from others of their model.
func (l *Findings) gpus(m *machine.Machine, state *health.Snapshot) {
	usual := usualLinks(m)
	for i := range m.GPUs {
		g := &m.GPUs[i]
		subject := fmt.Sprintf("GPU %d (%s, %s)", g.Index, g.PCI, g.UUID)
		v := host.Vendors().Of(m, g)
		if v == nil {
			v = &gpu.Vendor{Link: "link"}
		}
		switch s := state.GPU(g.UUID); {
		case s.Cause == health.Lost:
			l.problem(subject, v.Remedies.Lost, "lost: %s. It counts as unhealthy; pods keep the others.", g.Health.Reason)
		case !s.Healthy:
			l.problem(subject, v.Remedies.Unhealthy, "unhealthy: %s", s.Reason)
		default:
			l.links(g, v, subject, usual[g.Product])
		}
	}
}

// links explains a healthy GPU that has trouble with its fabric, or fewer links than most of its model.
func (l *Findings) links(g *machine.GPU, v *gpu.Vendor, subject string, usual int) {
	switch f := g.Fabric; {
	case f == nil:
	case f.State != machine.FabricCompleted:
		l.problem(subject, v.Remedies.Fabric, "not registered with the %s fabric: %s. "+
			"Jobs of several GPUs fail or go over PCIe.", v.Link, strings.TrimSuffix(f.State+": "+f.Reason, ": "))
	case f.Reason != "":
		l.problem(subject, v.Remedies.Fabric, "the %s fabric reports: %s", v.Link, f.Reason)
	}
	remedy := v.Remedies.Link + " " + g.PCI
	switch n := linksOf(g); {
	case g.Fabric != nil && g.Fabric.State == machine.FabricFailed: // Its links count for nothing.
	case n == 0 && usual > 0:
		l.problem(subject, remedy+"; until it is back, keep it out of jobs of several GPUs.",
			"no %s is up, where others of its model have %d", v.Link, usual)
	case n < usual:
		l.problem(subject, remedy+".", "%d %ss are up, where others of its model have %d", n, v.Link, usual)
	}
}

// usualLinks returns, by product, the number of links that most GPUs have; ties go to the larger number.
func usualLinks(m *machine.Machine) map[string]int {
	counts, usual := map[string]map[int]int{}, map[string]int{}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if counts[g.Product] == nil {
			counts[g.Product] = map[int]int{}
		}
		counts[g.Product][linksOf(g)]++
		usual[g.Product] = model.Mode(counts[g.Product])
	}
	return usual
}

func linksOf(g *machine.GPU) (n int) {
	for i := range g.NVLinks {
		n += g.NVLinks[i].Links
	}
	return n
}

// hcas explains unhealthy HCAs of the fabric, and those that no pod gets. Storage and management adapters often
// have a port without a cable.
func (l *Findings) hcas(m *machine.Machine, state *health.Snapshot) {
	ids := m.HCAIDs()
	for i := range m.HCAs {
		h := &m.HCAs[i]
		switch s := state.HCA(ids[i]); {
		case h.Elsewhere:
			l.note(h.Name, "", "is in another network namespace, as an HCA is that a pod has alone: its ports are not seen")
		case s.Cause == health.Idle: // A container that gets it sets it up.
		case h.PhysFn != "" && s.Healthy && layerOf(h) == machine.InfiniBand && strings.Trim(h.NodeGUID, "0:") == "":
			l.problem(h.Name, "Set its GUIDs on the physical function: ip link set … vf N node_guid …, port_guid ….",
				"is a virtual function in use with node GUID 0")
		case h.Role == machine.RoleFabric && h.PhysFn != "" && s.Cause == health.PortDown:
			l.problem(h.Name, "Set its GUIDs and its state on the physical function: ip link set … vf N state auto.",
				"%s", s.Reason)
		case h.Role == machine.RoleFabric && !s.Healthy:
			remedy := map[health.Cause]string{
				health.PortDown: "Look at the cable and the switch port: ibstat " + h.Name + ", mlxlink -d " + h.PCI + ".",
				health.NoSubnetManager: "See that a subnet manager runs on this fabric: sminfo, " +
					"opensm's or UFM's log.",
				health.RateDegraded: "The link came up with fewer lanes or a lower speed: " +
					"look at the cable and the transceiver (mlxlink).",
			}[s.Cause]
			l.problem(h.Name, remedy, "%s", s.Reason)
		case h.Role == machine.RoleNVSwitch:
			l.note(h.Name, "", "is the management function of an NVSwitch and not a network adapter, so no pod gets it")
		case h.Role == machine.RoleVirtual:
			l.note(h.Name, "", "is soft RDMA (%s), so no pod gets it unless a resource selects role virtual", h.Driver)
		case h.Role == machine.RoleFabric:
			if other := oneCable(m.HCAs[:i], h); other != nil {
				l.note(other.Name+", "+h.Name, "", "share one cable (%s): a container with one of them may get half of its rate",
					h.Ports[0].Rate)
			}
		}
	}
}

// oneCable returns the HCA among others that reaches the same port of its adapter over PCIe lanes of its own, or nil:
// their functions have one number in two places of the PCI tree, and one system image.
func oneCable(others []machine.HCA, h *machine.HCA) *machine.HCA {
	function := func(h *machine.HCA) string { return h.PCI[strings.LastIndexByte(h.PCI, '.')+1:] }
	at := slices.IndexFunc(others, func(o machine.HCA) bool {
		return o.SysImageGUID == h.SysImageGUID && o.Role == h.Role && o.PhysFn == "" && function(&o) == function(h)
	})
	if at < 0 || h.PhysFn != "" || len(h.Ports) == 0 || strings.Trim(h.SysImageGUID, "0:") == "" {
		return nil
	}
	return &others[at]
}

// stack explains the state of the RDMA stack.
func (l *Findings) stack(m *machine.Machine) {
	if len(m.HCAs) > 0 && !m.RDMA.RDMACM {
		l.problem("/dev/infiniband/rdma_cm", "modprobe rdma_ucm",
			"does not exist: connections by rdma_cm fail (UCX, NVMe-oF, NCCL over RoCE)")
	}
	if m.RDMA.NetnsMode == "exclusive" {
		l.problem("RDMA network namespaces",
			"rdma system set netns shared (before any other namespace exists, or by options ib_core netns_mode=1); "+
				"or sharers: 1, and a network with rdma-cni for each pod.",
			"exclusive: a pod opens only an HCA that was moved into its namespace, so shared HCAs fail in pods")
	}
}
