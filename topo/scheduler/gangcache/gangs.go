package gangcache

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// gangs are by name.
type gangs map[types.NamespacedName]*gangInfo

// get is the gang of a name, which is created if it is missing.
func (all gangs) get(key types.NamespacedName) *gangInfo {
	g := all[key]
	if g == nil {
		g = &gangInfo{
			key: key, members: map[types.UID]*member{}, objects: map[string]object{},
			outdated: true, incompleteSince: time.Now(),
		}
		all[key] = g
	}
	return g
}

// update is called when a gang lost a member or an object. One without any is
// forgotten.
func (all gangs) update(g *gangInfo) {
	g.invalidate()
	if len(g.members) == 0 && len(g.objects) == 0 {
		delete(all, g.key)
	}
}

// unit is a gang and those that it runs with or not at all: gangs that list each other,
// by name. missing is what a gang among them lists in vain: a list alone must not hold
// up the gang that it names.
func (all gangs) unit(g *gangInfo) (unit []*gangInfo, missing string) {
	g.resolve()
	unit = []*gangInfo{g}
	if g.spec.Alone() {
		return unit, ""
	}
	for next := unit; len(next) > 0; next = next[1:] {
		lister := next[0]
		for _, key := range lister.spec.Groups {
			other := all[key]
			if other != nil {
				other.resolve()
			}
			switch {
			case other == nil:
				missing = cmp.Or(missing, fmt.Sprintf("podgroup %s of its groups: there is none", key))
			case key != lister.key && !slices.Contains(other.spec.Groups, lister.key):
				missing = cmp.Or(missing, fmt.Sprintf("podgroup %s of its groups: that does not list %s", key, lister.key))
			case slices.Contains(unit, other):
			case len(unit) == gang.MaxGroups:
				missing = cmp.Or(missing, fmt.Sprintf("podgroup %s of its groups: they are more than %d", key, gang.MaxGroups))
			default:
				unit, next = append(unit, other), append(next, other)
			}
		}
	}
	slices.SortFunc(unit, func(a, b *gangInfo) int { return cmp.Compare(a.key.String(), b.key.String()) })
	return unit, missing
}

// incomplete is what a gang, or one that it runs with, waits for: empty if it has
// the pods that it needs, or a fault, which the scheduling cycle rejects.
func (all gangs) incomplete(g *gangInfo) string {
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

// reservations collects what plans reserve, and what is reserved in advance but for some
// gangs. A member that is being bound is on its node already.
func (all gangs) reservations(but map[*gangInfo]bool) fit.Reservations {
	out := fit.Reservations{}
	for _, g := range all {
		if !but[g] {
			for node, list := range g.advance.Reservations {
				out[node] = append(out[node], list...)
			}
		}
		if g.deadline.IsZero() {
			continue
		}
		open := false
		for _, m := range g.members {
			if m.stage == planned || m.stage == reserved {
				out[m.node] = append(out[m.node], m.resources.Reservation())
				open = true
			}
		}
		if !open {
			g.deadline = time.Time{}
		}
	}
	return out
}

// inPart reports that a gang runs with fewer members than it needs, or does not while one
// runs that runs with it or not at all: a pod could not be bound, the scheduler was
// restarted while it bound them, or members died.
func (all gangs) inPart(g *gangInfo) bool {
	unit, _ := all.unit(g)
	runs := slices.ContainsFunc(unit, func(u *gangInfo) bool { return u.once && u.count(bound) > 0 })
	return runs && g.err == nil && (g.count(bound) < g.spec.MinMember || g.partlyBound())
}

// interrupted are the other gangs of at least a priority that run with fewer members
// than they need, by name.
func (all gangs) interrupted(but *gangInfo, priority int32) (out []*gangInfo) {
	for _, g := range all {
		if g == but || !g.deadline.IsZero() || !all.inPart(g) {
			continue
		}
		for _, m := range g.members {
			if m.schedulable() && m.stage == pending && m.priority() >= priority {
				out = append(out, g)
				break
			}
		}
	}
	slices.SortFunc(out, func(a, b *gangInfo) int { return cmp.Compare(a.key.String(), b.key.String()) })
	return out
}
