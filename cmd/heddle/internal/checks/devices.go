package checks

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/host"
)

// gpus explains GPUs that are unhealthy, or differ from others of their model.
func (l *List) gpus(m *machine.Machine) {
	usual := usualLinks(m)
	for i := range m.GPUs {
		g := &m.GPUs[i]
		subject := fmt.Sprintf("GPU %d (%s, %s)", g.Index, g.PCI, g.UUID)
		vendor := host.Vendors().Of(m, g)
		if vendor == nil {
			vendor = &gpu.Vendor{Link: "link"}
		}
		switch g.Health.State {
		case machine.Healthy:
			l.nvlinks(g, vendor, subject, usual[g.Product])
		case machine.Lost:
			l.Problem(subject, vendor.Remedies.Lost,
				"lost: %s. It counts as unhealthy; pods keep the others.", g.Health.Reason)
		case machine.Unhealthy:
			l.Problem(subject, vendor.Remedies.Unhealthy, "unhealthy: %s", g.Health.Reason)
		}
	}
}

// nvlinks explains a healthy GPU with fewer NVLinks than most of its model.
func (l *List) nvlinks(g *machine.GPU, v *gpu.Vendor, subject string, usual int) {
	switch f := g.Fabric; {
	case f == nil:
	case f.State == machine.FabricFailed:
		l.Problem(subject, v.Remedies.Fabric, "its registration with the %s fabric failed: %s. "+
			"It works alone; jobs of several GPUs fail or go over PCIe.", v.Link, f.Reason)
		return // Its links count for nothing.
	case f.State != machine.FabricCompleted:
		l.Problem(subject, v.Remedies.Fabric,
			"not registered with the %s fabric: %s. Jobs of several GPUs fail or go over PCIe.", v.Link, f.State)
	case f.Reason != "":
		l.Problem(subject, v.Remedies.Fabric, "the %s fabric reports: %s", v.Link, f.Reason)
	}
	remedy := v.Remedies.Link + " " + g.PCI
	switch n := links(g); {
	case n == 0 && usual > 0:
		l.Problem(subject, remedy+"; until it is back, keep it out of jobs of several GPUs.",
			"no %s is up, where others of its model have %d", v.Link, usual)
	case n < usual:
		l.Problem(subject, remedy+".", "%d %ss are up, where others of its model have %d", n, v.Link, usual)
	}
}

// usualLinks is, by product, the number of NVLinks that most GPUs have; ties go
// to the larger number.
func usualLinks(m *machine.Machine) map[string]int {
	counts := map[string]map[int]int{}
	usual := map[string]int{}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if counts[g.Product] == nil {
			counts[g.Product] = map[int]int{}
		}
		counts[g.Product][links(g)]++
	}
	for product, byLinks := range counts {
		best := 0
		for n, count := range byLinks {
			if count > byLinks[best] || count == byLinks[best] && n > best {
				best = n
			}
		}
		usual[product] = best
	}
	return usual
}

func links(g *machine.GPU) int {
	n := 0
	for i := range g.NVLinks {
		n += g.NVLinks[i].Links
	}
	return n
}

// hcas explains the ports of HCAs. A dead port of the fabric is a problem;
// storage and management adapters often have a port without a cable.
func (l *List) hcas(m *machine.Machine) {
	best := fabricRate(m)
	for i := range m.HCAs {
		h := &m.HCAs[i]
		if h.Elsewhere {
			l.Note(h.Name, "", "is in another network namespace, as an HCA is that a pod has alone: its ports are not seen")
			continue
		}
		switch h.Role {
		case machine.RoleFabric:
			for j := range h.Ports {
				l.fabricPort(h, &h.Ports[j], best)
			}
			if len(h.Ports) == 0 {
				l.Problem(h.Name, "", "has no port that could be read")
			}
		case machine.RoleStorage, machine.RoleManagement:
			for j := range h.Ports {
				if p := &h.Ports[j]; p.State != machine.PortActive {
					l.Note(portName(h, p), "", "%s (%s), role %s", p.State, p.PhysState, h.Role)
				}
			}
		case machine.RoleNVSwitch:
			l.Note(h.Name, "",
				"is the management function of an NVSwitch and not a network adapter, so no pod gets it")
		case machine.RoleVirtual:
			l.Note(h.Name, "", "is soft RDMA (%s), "+
				"so no pod gets it unless a resource selects role virtual", h.Driver)
		}
	}
}

func portName(h *machine.HCA, p *machine.Port) string {
	return fmt.Sprintf("%s port %d", h.Name, p.Number)
}

// fabricPort explains one port of a fabric HCA; best is the highest rate that
// an active port of the fabric has.
func (l *List) fabricPort(h *machine.HCA, p *machine.Port, best float64) {
	subject, infiniBand := portName(h, p), p.LinkLayer == machine.InfiniBand
	switch {
	case p.State == machine.PortActive && infiniBand && p.SMLID == 0:
		l.Problem(subject, "See that a subnet manager runs: sminfo.",
			"ACTIVE, but no subnet manager is known (SM LID 0)")
	case p.State == machine.PortActive && p.RateGbps != nil && *p.RateGbps < best:
		l.Problem(subject,
			"The link came up with fewer lanes or a lower speed: look at the cable and the transceiver (mlxlink).",
			"%s, where other ports of the fabric have %g Gb/s", p.Rate, best)
	case p.State == machine.PortActive && infiniBand:
		var down []string
		for _, d := range p.Netdevs {
			if d.OperState == "down" {
				down = append(down, d.Name)
			}
		}
		if len(down) > 0 {
			l.Note(subject, "", "ACTIVE, and its IPoIB device is down (%s): RDMA works without it", strings.Join(down, ", "))
		}
	case p.State == machine.PortActive:
	case slices.ContainsFunc(h.Ports, func(o machine.Port) bool { return o.State == machine.PortActive }):
		l.Note(subject, "", "%s (%s), and another port of this HCA is ACTIVE: the HCA is in use without it",
			p.State, p.PhysState)
	case (p.State == machine.PortInit || p.State == machine.PortArmed) && infiniBand:
		l.Problem(subject, "See that a subnet manager runs on this fabric: sminfo, opensm's or UFM's log.",
			"%s: the cable is in and no subnet manager has brought the port up", p.State)
	default:
		l.Problem(subject, "Look at the cable and the switch port: ibstat "+h.Name+", mlxlink -d "+h.PCI+".",
			"%s (%s): this HCA cannot reach its leaf switch", cmp.Or(p.State, "state unknown"), p.PhysState)
	}
}

// fabricRate returns the highest rate of an active port of the fabric, in 10^9 bits
// a second.
func fabricRate(m *machine.Machine) float64 {
	var best float64
	for i := range m.HCAs {
		if h := &m.HCAs[i]; h.Role == machine.RoleFabric {
			best = max(best, activeRate(h))
		}
	}
	return best
}

// stack explains the state of the RDMA stack.
func (l *List) stack(m *machine.Machine) {
	if len(m.HCAs) > 0 && !m.RDMA.RDMACM {
		l.Problem("/dev/infiniband/rdma_cm", "modprobe rdma_ucm",
			"does not exist: connections by rdma_cm fail (UCX, NVMe-oF, NCCL over RoCE)")
	}
	if m.RDMA.NetnsMode == "exclusive" {
		l.Problem("RDMA network namespaces",
			"rdma system set netns shared (before any other namespace exists, or by options ib_core netns_mode=1); "+
				"or sharers: 1, and a network with rdma-cni for each pod.",
			"exclusive: a pod opens only an HCA that was moved into its namespace, so shared HCAs fail in pods")
	}
}
