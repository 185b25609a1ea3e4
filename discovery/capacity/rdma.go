package capacity

import (
	"fmt"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
)

// hcas counts the slots of one RDMA resource: for each healthy HCA as many as
// may share it. Under count "all" a pod gets every HCA, so there are as many
// slots as may share them together.
func hcas(m *machine.Machine, r *config.RDMAResource) Resource {
	t := tally{name: r.Name}
	var rejected []string
	for i := range m.HCAs {
		h := &m.HCAs[i]
		if selected, reason := r.Selectors.Select(m, h); !selected {
			rejected = append(rejected, h.Name+": "+reason)
			continue
		}
		t.add(h.Name, Unhealthy(h, PortsDown(h)), int64(r.Sharers))
	}
	out := t.resource()
	if r.Count == config.CountAll {
		out.Count = min(out.Count, int64(r.Sharers))
	}
	if out.Devices > 0 {
		return out
	}
	switch {
	case len(rejected) > 0:
		out.Reason = "no HCA is selected: " + several(rejected)
	case probe(m, "rdma") != "":
		out.Reason = probe(m, "rdma")
	default:
		out.Reason = "there are no RDMA devices"
	}
	return out
}

// Unhealthy is why an HCA cannot be handed out, empty if it can: the reason that
// its health has, or that it has no device node.
func Unhealthy(h *machine.HCA, reason string) string {
	if reason == "" && len(h.CharDevices.UVerbs) == 0 {
		return "it has no uverbs device (module ib_uverbs)"
	}
	return reason
}

// UnhealthyFrom is [Unhealthy] with the reason that health returns; nil is the scan's.
func UnhealthyFrom(h *machine.HCA, health func(*machine.HCA) string) string {
	if health == nil {
		health = PortsDown
	}
	return Unhealthy(h, health(h))
}

// PortsDown is why an HCA cannot carry traffic as far as one scan knows: none of
// its ports is active. Empty if one is.
func PortsDown(h *machine.HCA) string {
	if len(h.Ports) == 0 {
		return "no port could be read"
	}
	var ports []string
	for i := range h.Ports {
		p := &h.Ports[i]
		if p.State == machine.PortActive {
			return ""
		}
		ports = append(ports, fmt.Sprintf("port %d is %s", p.Number, p.State))
	}
	return strings.Join(ports, ", ")
}
