package gangcache

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/heddle-dev/heddle/topo/gang"
)

// unit returns a gang and those that it runs with, by name: gangs that list each other. missing
// names a gang that is listed in vain. A list alone does not hold up the listed gang.
func (c *Cache) unit(g *gangInfo) (u []*gangInfo, missing string) {
	g.resolve()
	u = []*gangInfo{g}
	if g.spec.Alone() {
		return u, ""
	}
	for next := u; len(next) > 0; next = next[1:] {
		lister := next[0]
		for _, key := range lister.spec.Groups {
			other := c.byKey[key]
			if other != nil {
				other.resolve()
			}
			switch {
			case other == nil:
				missing = cmp.Or(missing, fmt.Sprintf("podgroup %s of its groups does not exist", key))
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
	slices.SortFunc(u, byKey)
	return u, missing
}

func byKey(a, b *gangInfo) int { return cmp.Compare(a.key.String(), b.key.String()) }

// incomplete returns what a gang, or one that it runs with, waits for. It is empty if the gang
// has the pods that it needs, or a fault, which the scheduling cycle rejects.
func (c *Cache) incomplete(g *gangInfo) string {
	unit, missing := c.unit(g)
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
			return fmt.Sprintf("podgroup %s has no min-available and no PodGroup object with minMember", u.key.Name)
		case n < u.spec.MinMember:
			return fmt.Sprintf("podgroup %s waits for pods: %d of %d exist", u.key.Name, n, u.spec.MinMember)
		}
	}
	return ""
}

// inPart reports that a gang runs with fewer members than it needs, or waits while a gang of its
// unit runs: a pod could not be bound, the scheduler was restarted while it bound them, or
// members died.
func (c *Cache) inPart(g *gangInfo) bool {
	unit, _ := c.unit(g)
	runs := slices.ContainsFunc(unit, func(u *gangInfo) bool { return u.once && u.count(bound) > 0 })
	return runs && g.err == nil && (g.count(bound) < g.spec.MinMember || g.partlyBound())
}

// interrupted returns the other gangs of at least a priority that run with fewer members than
// they need, by name.
func (c *Cache) interrupted(except *gangInfo, priority int32) (out []*gangInfo) {
	for _, g := range c.byKey {
		if g == except || !g.deadline.IsZero() || !c.inPart(g) {
			continue
		}
		if g.any(func(m *member) bool { return m.waits() && m.priority() >= priority }) {
			out = append(out, g)
		}
	}
	slices.SortFunc(out, byKey)
	return out
}
