package finding

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// hcas explains the ports of HCAs. A dead port of the fabric is a problem;
// storage and management adapters often have a port without a cable.
func hcas(m *machine.Machine) []Finding {
	var all []Finding
	best := fabricRate(m)
	for i := range m.HCAs {
		h := &m.HCAs[i]
		switch h.Role {
		case machine.RoleFabric:
			for j := range h.Ports {
				all = append(all, fabricPort(h, &h.Ports[j], best)...)
			}
			if len(h.Ports) == 0 {
				all = append(all, Finding{Problem, h.Name, "has no port that could be read", ""})
			}
		case machine.RoleStorage, machine.RoleManagement:
			for j := range h.Ports {
				if p := &h.Ports[j]; p.State != machine.PortActive {
					all = append(all, Finding{Note, portName(h, p), fmt.Sprintf("%s (%s), role %s", p.State, p.PhysState, h.Role), ""})
				}
			}
		case machine.RoleNVSwitch:
			all = append(all, Finding{
				Note, h.Name, "is the management function of an NVSwitch: it looks like an HCA and is none, so no pod gets it", "",
			})
		case machine.RoleVirtual:
			all = append(all, Finding{
				Note, h.Name, "is soft RDMA (" + h.Driver + "): it is no fabric HCA, " +
					"so no pod gets it unless a resource selects role virtual", "",
			})
		}
	}
	return all
}

func portName(h *machine.HCA, p *machine.Port) string {
	return fmt.Sprintf("%s port %d", h.Name, p.Number)
}

// fabricPort explains one port of a fabric HCA; best is the highest rate that
// an active port of the fabric has.
func fabricPort(h *machine.HCA, p *machine.Port, best float64) []Finding {
	f := Finding{Level: Problem, Subject: portName(h, p)}
	infiniBand := p.LinkLayer == machine.InfiniBand
	switch {
	case p.State == machine.PortActive && infiniBand && p.SMLID == 0:
		f.Message, f.Remedy = "ACTIVE, but no subnet manager is known (SM LID 0)", "See that a subnet manager runs: sminfo."
	case p.State == machine.PortActive && p.RateGbps != nil && *p.RateGbps < best:
		f.Message = fmt.Sprintf("%s, where other ports of the fabric have %g Gb/s", p.Rate, best)
		f.Remedy = "The link came up with fewer lanes or a lower speed: look at the cable and the transceiver (mlxlink)."
	case p.State == machine.PortActive:
		return downDevices(f.Subject, p)
	case (p.State == machine.PortInit || p.State == machine.PortArmed) && infiniBand:
		f.Message = p.State + ": the cable is in and no subnet manager has brought the port up"
		f.Remedy = "See that a subnet manager runs on this fabric: sminfo, opensm's or UFM's log."
	default:
		f.Message = fmt.Sprintf("%s (%s): this HCA cannot reach its leaf switch",
			cmp.Or(p.State, "state unknown"), p.PhysState)
		f.Remedy = "Look at the cable and the switch port: ibstat " + h.Name + ", mlxlink -d " + h.PCI + "."
	}
	return []Finding{f}
}

// downDevices explains network devices that are down over an active port.
func downDevices(subject string, p *machine.Port) []Finding {
	var down []string
	for _, d := range p.Netdevs {
		if d.OperState == "down" && p.LinkLayer == machine.InfiniBand {
			down = append(down, d.Name)
		}
	}
	if len(down) == 0 {
		return nil
	}
	return []Finding{{
		Note, subject,
		"ACTIVE, and its IPoIB device is down (" + strings.Join(down, ", ") + "): RDMA works without it", "",
	}}
}

// fabricRate is the highest rate of an active port of the fabric, in 10^9 bits
// a second.
func fabricRate(m *machine.Machine) float64 {
	var best float64
	for i := range m.HCAs {
		if m.HCAs[i].Role != machine.RoleFabric {
			continue
		}
		for _, p := range m.HCAs[i].Ports {
			if p.State == machine.PortActive && p.RateGbps != nil {
				best = max(best, *p.RateGbps)
			}
		}
	}
	return best
}

// stack explains the state of the RDMA stack.
func stack(m *machine.Machine) []Finding {
	var all []Finding
	if len(m.HCAs) > 0 && !m.RDMA.RDMACM {
		all = append(all, Finding{
			Problem, "/dev/infiniband/rdma_cm", "is not there: connections by rdma_cm fail (UCX, NVMe-oF, NCCL over RoCE)",
			"modprobe rdma_ucm",
		})
	}
	if m.RDMA.NetnsMode == "exclusive" {
		all = append(all, Finding{
			Problem, "RDMA network namespaces",
			"exclusive: a pod opens only an HCA that was moved into its namespace, so shared HCAs fail in pods",
			"rdma system set netns shared (before any other namespace exists, or by options ib_core netns_mode=1).",
		})
	}
	return all
}
