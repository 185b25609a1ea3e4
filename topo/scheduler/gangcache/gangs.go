package gangcache

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// gangs are what the cache knows, without its lock. What asks about several gangs is in this
// file, what changes them in transitions.go.
type gangs struct {
	Options
	byKey   map[types.NamespacedName]*gangInfo
	members map[types.UID]*member
	// reservations are replaced, never changed: scheduling cycles read them without
	// the lock.
	reservations fit.Reservations
	effects      Effects
}

// of is the member that a pod is; nil for one of no gang.
func (all *gangs) of(pod *corev1.Pod) *member { return all.members[pod.UID] }

// unit are gangs that run together or not at all, by name.
type unit []*gangInfo

// satisfied reports that enough members of each gang have a node.
func (u unit) satisfied() bool {
	return !slices.ContainsFunc(u, func(g *gangInfo) bool { return !g.satisfied() })
}

// unit is a gang and those that it runs with: gangs that list each other. missing is what
// a gang among them lists in vain: a list alone must not hold up the gang that it names.
func (all *gangs) unit(g *gangInfo) (u unit, missing string) {
	g.resolve()
	u = unit{g}
	if g.spec.Alone() {
		return u, ""
	}
	for next := u; len(next) > 0; next = next[1:] {
		lister := next[0]
		for _, key := range lister.spec.Groups {
			other := all.byKey[key]
			if other != nil {
				other.resolve()
			}
			switch {
			case other == nil:
				missing = cmp.Or(missing, fmt.Sprintf("podgroup %s of its groups: there is none", key))
			case key != lister.key && !slices.Contains(other.spec.Groups, lister.key):
				missing = cmp.Or(missing, fmt.Sprintf("podgroup %s of its groups: that does not list %s", key, lister.key))
			case slices.Contains(u, other):
			case len(u) == gang.MaxGroups:
				missing = cmp.Or(missing, fmt.Sprintf("podgroup %s of its groups: they are more than %d", key, gang.MaxGroups))
			default:
				u, next = append(u, other), append(next, other)
			}
		}
	}
	slices.SortFunc(u, func(a, b *gangInfo) int { return cmp.Compare(a.key.String(), b.key.String()) })
	return u, missing
}

// incomplete is what a gang, or one that it runs with, waits for: empty if it has
// the pods that it needs, or a fault, which the scheduling cycle rejects.
func (all *gangs) incomplete(g *gangInfo) string {
	unit, missing := all.unit(g)
	if g.err != nil || g.doneWith() {
		return ""
	}
	if missing != "" {
		return fmt.Sprintf("podgroup %s waits for %s", g.key.Name, missing)
	}
	for _, u := range unit {
		if u.err != nil || u.doneWith() {
			continue
		}
		switch n := u.count(pending); {
		case u.spec.MinMember == 0:
			return fmt.Sprintf("podgroup %s has no min-available, and there is no PodGroup object with minMember", u.key.Name)
		case n < u.spec.MinMember:
			return fmt.Sprintf("podgroup %s waits for pods: %d of %d exist", u.key.Name, n, u.spec.MinMember)
		}
	}
	return ""
}

// reserved collects what plans reserve, and what is reserved in advance but for some
// gangs. A member that is being bound is on its node already.
func (all *gangs) reserved(but map[*gangInfo]bool) fit.Reservations {
	out := fit.Reservations{}
	for _, g := range all.byKey {
		if !but[g] {
			for node, list := range g.advance.Reservations {
				out[node] = append(out[node], list...)
			}
		}
		if g.deadline.IsZero() {
			continue
		}
		for _, m := range g.members {
			if m.onItsWay() {
				out[m.node] = append(out[m.node], m.resources.Reservation())
			}
		}
	}
	return out
}

// inPart reports that a gang runs with fewer members than it needs, or does not while one
// runs that runs with it or not at all: a pod could not be bound, the scheduler was
// restarted while it bound them, or members died.
func (all *gangs) inPart(g *gangInfo) bool {
	unit, _ := all.unit(g)
	runs := slices.ContainsFunc(unit, func(u *gangInfo) bool { return u.once && u.count(bound) > 0 })
	return runs && g.err == nil && (g.count(bound) < g.spec.MinMember || g.partlyBound())
}

// interrupted are the other gangs of at least a priority that run with fewer members
// than they need, by name.
func (all *gangs) interrupted(but *gangInfo, priority int32) (out []*gangInfo) {
	for _, g := range all.byKey {
		if g == but || !g.deadline.IsZero() || !all.inPart(g) {
			continue
		}
		if g.any(func(m *member) bool { return m.waits() && m.priority() >= priority }) {
			out = append(out, g)
		}
	}
	slices.SortFunc(out, func(a, b *gangInfo) int { return cmp.Compare(a.key.String(), b.key.String()) })
	return out
}
