package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// ConditionReady is the reason of a condition that is true; otherwise it is a
// [Cause], or SeveralCauses.
const (
	ConditionReady         = "AllDevicesReady"
	ConditionSeveralCauses = "SeveralCauses"
)

// Shortage is devices of a resource that no pod can get, for one cause: a
// sample of heddle_unavailable{resource,reason}. Other parts add their own,
// such as a resource with selectors that match no HCA; Count is then 0.
type Shortage struct {
	Resource string
	Cause    Cause
	Count    int
	// Message names the devices and what is wrong with them.
	Message string
}

// Shortages groups the unhealthy devices of a resource by cause; devices is keyed by
// display name.
func Shortages(resource string, devices map[string]State) []Shortage {
	type group struct{ names, reasons []string }
	groups := map[Cause]*group{}
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		state := devices[name]
		if state.Healthy {
			continue
		}
		g := groups[state.Cause]
		if g == nil {
			g = &group{}
			groups[state.Cause] = g
		}
		g.names, g.reasons = append(g.names, name), append(g.reasons, state.Reason)
	}
	var all []Shortage
	for _, cause := range slices.Sorted(maps.Keys(groups)) {
		g := groups[cause]
		all = append(all, Shortage{resource, cause, len(g.names), describe(g.names, g.reasons)})
	}
	return all
}

// described is how many devices a message names: all GPUs of most nodes.
const described = 8

// describe states what several devices have in common once.
func describe(names, reasons []string) string {
	more := ""
	if n := len(names) - described; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
		names, reasons = names[:described], reasons[:described]
	}
	if len(slices.Compact(slices.Clone(reasons))) == 1 {
		return strings.Join(names, ", ") + more + ": " + reasons[0]
	}
	var parts []string
	for i := range names {
		parts = append(parts, names[i]+": "+reasons[i])
	}
	return strings.Join(parts, "; ") + more
}

// Condition is a condition of the Node that heddle sets.
type Condition struct {
	// Type is [wellknown.ConditionDevices], or another part's.
	Type string
	// True is its status, the other one False.
	True            bool
	Reason, Message string
	// Optional conditions mean the same while they are False and while the Node
	// has none: they are not added only to be False.
	Optional bool
}

// MaxMessage bounds a condition's message, in bytes.
const MaxMessage = 1024

// ConditionOf is [wellknown.ConditionDevices]: whether anything is short, and what.
func ConditionOf(shortages []Shortage) Condition {
	if len(shortages) == 0 {
		return Condition{
			Type: wellknown.ConditionDevices, True: true, Reason: ConditionReady,
			Message: "every device of every resource is healthy",
		}
	}
	sorted := slices.SortedStableFunc(slices.Values(shortages), func(a, b Shortage) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Cause, b.Cause))
	})
	reason := string(sorted[0].Cause)
	var parts []string
	for _, s := range sorted {
		if string(s.Cause) != reason {
			reason = ConditionSeveralCauses
		}
		count := ""
		if s.Count > 0 {
			count = fmt.Sprintf("%d unavailable: ", s.Count)
		}
		parts = append(parts, s.Resource+": "+count+s.Message)
	}
	text := wellknown.ClipTo(strings.Join(parts, ". "), MaxMessage)
	return Condition{Type: wellknown.ConditionDevices, Reason: reason, Message: text}
}

// NodeEvent is an Event to be recorded on the Node, such as of a device that
// became unhealthy, or has recovered.
type NodeEvent struct {
	// Warning is false for a device that has recovered.
	Warning bool
	// Reason is one of package wellknown.
	Reason  string
	Message string
}

// Events returns the Events of the devices that became unhealthy or recovered between two snapshots; GPUs and HCAs only
// if a resource of the configuration has them: storage adapters often have a port without a cable.
func Events(last, now *Snapshot, c *config.NodeConfig) []NodeEvent {
	var all []NodeEvent
	add := func(state State) {
		event := NodeEvent{Reason: wellknown.EventDeviceRecovered, Message: state.Name + " is healthy again"}
		if !state.Healthy {
			event = NodeEvent{
				Warning: true, Reason: wellknown.EventDeviceUnhealthy, Message: state.Name + " is unhealthy: " + state.Reason,
			}
		}
		all = append(all, event)
	}
	scan := c.WithRoles(now.Machine)
	for _, id := range changed(last.GPUs, now.GPUs) {
		unserved := slices.ContainsFunc(scan.GPUs, func(g machine.GPU) bool {
			return g.UUID == id && c.NotServed(scan, &g) != ""
		})
		if !unserved {
			add(now.GPUs[id])
		}
	}
	for _, id := range changed(last.HCAs, now.HCAs) {
		if offered(scan, c, id) {
			add(now.HCAs[id])
		}
	}
	return all
}

// offered reports whether a resource has this HCA, or had it when it was there.
func offered(scan *machine.Machine, c *config.NodeConfig, id string) bool {
	at := slices.Index(scan.HCAIDs(), id)
	if at < 0 {
		return true // It is gone, and a pod may have it.
	}
	h := &scan.HCAs[at]
	return slices.ContainsFunc(c.RDMA.Resources, func(r config.RDMAResource) bool {
		// A virtual function that one pod has alone is down until it is in that pod's
		// network.
		selected, _ := c.RDMA.Select(scan, &r, h)
		return selected && (h.PhysFn == "" || r.Sharers > 1)
	})
}

// Remedy is the action that remediation takes on a node.
type Remedy struct {
	// Cordon is whether the Node is to be cordoned.
	Cordon bool
	// Faulty are the GPUs, by UUID and sorted, that have been unhealthy for long enough.
	Faulty []string
	// Message names every unhealthy GPU and what is wrong with it; empty without any.
	Message string
}

// RemedyOf decides that by the health of the GPUs and by whether the Node is cordoned now.
// A cordon outlives a restart, after which health is known since that alone.
func RemedyOf(h *config.Health, now *Snapshot, cordoned bool, at time.Time) Remedy {
	var r Remedy
	var names, reasons []string
	stable := true
	for _, uuid := range slices.Sorted(maps.Keys(now.GPUs)) {
		state := now.GPUs[uuid]
		lasting := at.Sub(state.Since) >= h.RemediateAfter
		if state.Healthy {
			stable = stable && lasting
			continue
		}
		stable = false
		names, reasons = append(names, state.Name), append(reasons, state.Reason)
		if lasting {
			r.Faulty = append(r.Faulty, uuid)
		}
	}
	r.Message = describe(names, reasons)
	if h.Remediation == config.RemediationNone {
		return Remedy{Message: r.Message}
	}
	r.Cordon = len(r.Faulty) > 0 || cordoned && !stable
	return r
}
