package planner

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/queue"
)

// Advance is the room that is reserved in advance for gangs that are planned together.
type Advance struct {
	// Start is when they are expected to have it; zero without any.
	Start        time.Time
	Reservations fit.Reservations
}

// stands reports whether all of its nodes still take pods. A gang is given other nodes
// when one is lost.
func (p *Planner) stands(a *Advance, g *Gang, nodes []framework.NodeInfo) bool {
	usable, tree := 0, p.forest.of(&g.Spec)
	for _, info := range nodes {
		if len(a.Reservations[info.Node().Name]) == 0 {
			continue
		}
		id, ok := tree.placement.ID(info.Node().Name)
		if ok && tree.usable(id) && g.Members[0].Class.Eligible(info.Node()) {
			usable++
		}
	}
	return usable == len(a.Reservations)
}

// Advance reserves room for gangs that no plan had room for: the tightest place of all
// that are free soonest. It keeps what they have, unless that is due or lost; then
// members stay where there is room for them by now, and only the others get other
// nodes, if that is possible. Without any room, even if all pods left, it is empty.
func (p *Planner) Advance(r *Request, now time.Time) Advance {
	had := r.Gangs[0].Advance
	if !r.Gangs[0].Due && (had.Start.IsZero() || p.stands(&had, &r.Gangs[0], r.Nodes)) {
		return had
	}
	departures := fit.Departures(r.Nodes, now)
	if !had.Start.IsZero() {
		if again := p.soonest(keep(r, &had), departures, now); !again.Start.IsZero() {
			return again
		}
	}
	return p.soonest(r, departures, now)
}

// keep is the request with the members where they have room by now. The other nodes of
// the reservation did not become free, and are avoided.
func keep(r *Request, had *Advance) *Request {
	kept := *r
	kept.Gangs, kept.Reservations = slices.Clone(r.Gangs), fit.Reservations{}
	maps.Copy(kept.Reservations, r.Reservations)
	infos, nodeOf := map[string]framework.NodeInfo{}, map[types.UID]string{}
	for _, info := range r.Nodes {
		name := info.Node().Name
		infos[name] = info
		for i := range had.Reservations[name] {
			nodeOf[had.Reservations[name][i].UID] = name
		}
	}
	for i := range kept.Gangs {
		g := &kept.Gangs[i]
		g.Members, g.Avoid = slices.Clone(g.Members), slices.Clone(g.Avoid)
		for at := range g.Members {
			m := &g.Members[at]
			node := nodeOf[m.Pod.UID]
			if node == "" || m.Node != "" {
				continue
			}
			reservation := m.Reservation()
			free := fit.FreeOf(infos[node], kept.Reservations[node], &fit.Asker{Priority: reservation.Priority})
			if !m.Class.Eligible(infos[node].Node()) || free.Lacks(m.Class.Amounts) != "" {
				g.Avoid = append(g.Avoid, node)
				continue
			}
			m.Node = node
			kept.Reservations[node] = append(slices.Clip(kept.Reservations[node]), reservation)
		}
	}
	return &kept
}

// soonest finds when there is room, and where.
func (p *Planner) soonest(r *Request, departures []fit.Departure, now time.Time) Advance {
	ends := make([]time.Time, len(departures))
	for i := range departures {
		ends[i] = departures[i].At
	}
	later := *r
	later.Ahead = true
	var plans []Plan
	start, ok := queue.Soonest(ends, now, func(at time.Time) bool {
		later.Gone = fit.GoneBy(at, departures)
		found, reason := p.Plan(&later)
		if reason == "" {
			plans = found // The last that succeeds is the soonest.
		}
		return reason == ""
	})
	if !ok {
		return Advance{}
	}
	a, gone := Advance{Start: start, Reservations: fit.Reservations{}}, fit.GoneBy(start, departures)
	for i, plan := range plans {
		for rank, node := range plan.Nodes {
			m := &r.Gangs[i].Members[rank]
			node = cmp.Or(node, m.Node)
			if node == "" || m.Pod.Spec.NodeName != "" {
				continue
			}
			reservation := m.Reservation()
			reservation.Start, reservation.Leaving = start, gone[node].UIDs
			a.Reservations[node] = append(a.Reservations[node], reservation)
		}
	}
	return a
}
