package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

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

// Shortages groups the unhealthy devices of a resource by cause; devices are by display
// name.
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

// described is how many devices a message names.
const described = 4

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

// maxMessage bounds a condition's message, in bytes.
const maxMessage = 1024

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
	return Condition{Type: wellknown.ConditionDevices, Reason: reason, Message: Cut(strings.Join(parts, ". "))}
}

// Cut shortens a condition's message to 1024 bytes, at the start of a character.
func Cut(s string) string {
	const dots = "…"
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage-len(dots)], "") + dots
}
