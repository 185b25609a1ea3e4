package lldp

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// maxNeighbors bounds what is kept for one network device. One cable has one
// other end; hubs and chatty firmware add a few.
const maxNeighbors = 8

// table is the neighbors of one network device.
type table struct {
	entries []entry
}

type entry struct {
	Neighbor
	expires time.Time
}

// update takes a frame in and reports whether that changed anything but the
// time until which the neighbor is known.
func (t *table) update(n Neighbor, now time.Time) (changed bool) {
	t.expire(now)
	i := slices.IndexFunc(t.entries, func(e entry) bool { return e.Chassis == n.Chassis && e.Port == n.Port })
	switch {
	case n.TTL == 0 && i < 0:
		return false
	case n.TTL == 0:
		t.entries = slices.Delete(t.entries, i, i+1)
		return true
	case i >= 0:
		changed = t.entries[i].Neighbor != n
		t.entries[i] = entry{n, now.Add(n.TTL)}
	default:
		t.entries = append(t.entries, entry{n, now.Add(n.TTL)})
		changed = true
	}
	slices.SortFunc(t.entries, func(a, b entry) int { return better(&a.Neighbor, &b.Neighbor) })
	if len(t.entries) > maxNeighbors {
		t.entries = t.entries[:maxNeighbors]
	}
	return changed
}

func (t *table) expire(now time.Time) {
	t.entries = slices.DeleteFunc(t.entries, func(e entry) bool { return !now.Before(e.expires) })
}

// neighbors are those known now, the likeliest switch first.
func (t *table) neighbors(now time.Time) []Neighbor {
	t.expire(now)
	out := make([]Neighbor, len(t.entries))
	for i := range t.entries {
		out[i] = t.entries[i].Neighbor
	}
	return out
}

// better orders neighbors of one port: what forwards frames before what does
// not, what is nearer before what may be farther, and then by identity, so
// that the choice is the same at all times.
func better(a, b *Neighbor) int {
	return cmp.Or(likelier(a, b), strings.Compare(a.Chassis.Text, b.Chassis.Text),
		strings.Compare(a.Port.Text, b.Port.Text))
}

func likelier(a, b *Neighbor) int {
	switch {
	case a.Bridge && !b.Bridge:
		return -1
	case b.Bridge && !a.Bridge:
		return 1
	}
	return cmp.Compare(a.Scope, b.Scope)
}
