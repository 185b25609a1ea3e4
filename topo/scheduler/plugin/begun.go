package plugin

import (
	"context"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/topo/gang"
)

// begin notes that a gang has members on nodes, and perhaps others that wait.
func (b *book) begin(e *entry) {
	if e.once {
		b.begun[e.key] = e
	}
}

// broken are the gangs that run with fewer members than they need, in the order
// of their names: the scheduler was killed while it bound them, or members died.
func (b *book) broken() (all []*entry) {
	for key, e := range b.begun {
		if b.gangs[key] != e || e.next() == nil {
			delete(b.begun, key)
			continue
		}
		b.settle(e)
		if n := e.count(bound); e.fault == nil && e.deadline.IsZero() && n > 0 && n < e.gang.MinMember &&
			e.gang.Policy != gang.OnlyWaiting {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *entry) int { return strings.Compare(a.key.String(), b.key.String()) })
	return all
}

// next is the member of the lowest rank that waits without a place.
func (e *entry) next() *member {
	waits := func(m *member) bool { return m.waits() && m.stage == pending }
	for _, m := range e.members {
		if !waits(m) {
			continue
		}
		all := ordered(e)
		return all[slices.IndexFunc(all, waits)]
	}
	return nil
}

// finish gives places to what is missing of gangs that run by half, before a
// gang of no higher priority that has nothing yet is planned for: it could take
// the room that they alone can use.
func (l *planner) finish(ctx context.Context, e *entry, priority int32) {
	if e.once {
		return
	}
	b := l.plugin.book
	for _, other := range b.broken() {
		m := other.next()
		if other == e || priorityOf(m.pod) < priority {
			continue
		}
		unit, _ := b.unit(other)
		// Where there is no room its leader tries again, when something changes.
		if l.unit(ctx, unit, m.pod) == "" {
			l.plugin.wake(other.key)
		}
	}
}
