package lldp

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// maxNeighbors bounds the neighbors of one network device. One cable has one other end; hubs and
// chatty firmware add a few.
const maxNeighbors = 8

// table is the neighbors of one network device, the likeliest switch first.
type table []entry

type entry struct {
	Neighbor
	expires time.Time
}

// update takes a frame in and reports whether that changed anything but the
// time until which the neighbor is known.
func (t *table) update(n Neighbor, now time.Time) (changed bool) {
	t.expire(now)
	changed = n.TTL > 0
	if i := slices.IndexFunc(*t, func(e entry) bool { return e.Chassis == n.Chassis && e.Port == n.Port }); i >= 0 {
		changed = (*t)[i].Neighbor != n
		*t = slices.Delete(*t, i, i+1)
	}
	if n.TTL > 0 {
		*t = append(*t, entry{n, now.Add(n.TTL)})
		slices.SortFunc(*t, func(a, b entry) int { return better(&a.Neighbor, &b.Neighbor) })
		*t = (*t)[:min(len(*t), maxNeighbors)]
	}
	return changed
}

func (t *table) expire(now time.Time) {
	*t = slices.DeleteFunc(*t, func(e entry) bool { return !now.Before(e.expires) })
}

// neighbors returns the known neighbors.
func (t *table) neighbors(now time.Time) (known []Neighbor) {
	t.expire(now)
	for _, e := range *t {
		known = append(known, e.Neighbor)
	}
	return known
}

// better orders neighbors of one port: devices that forward frames first, then nearer ones, and
// then by identity, so that the choice is stable.
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
