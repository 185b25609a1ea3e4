package planner

import (
	"maps"
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

// nodeOf has the nodes of the pods that it is for.
func (a *Advance) nodeOf() map[types.UID]string {
	out := map[types.UID]string{}
	for node, list := range a.Reservations {
		for i := range list {
			out[list[i].UID] = node
		}
	}
	return out
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
	r.Departures = fit.Departures(r.Nodes, now)
	if !had.Start.IsZero() {
		if again := p.soonest(p.keep(r, &had), now); !again.Start.IsZero() {
			return again
		}
	}
	return p.soonest(r, now)
}

// keep is the request with the members where they have room by now. The other nodes of
// the reservation did not become free, and are avoided.
func (p *Planner) keep(r *Request, had *Advance) *Request {
	kept := *r
	kept.Gangs, kept.Reservations = make([]Gang, len(r.Gangs)), maps.Clone(r.Reservations)
	if kept.Reservations == nil {
		kept.Reservations = fit.Reservations{}
	}
	infos := make(map[string]framework.NodeInfo, len(had.Reservations))
	for _, info := range r.Nodes {
		if name := info.Node().Name; len(had.Reservations[name]) > 0 {
			infos[name] = info
		}
	}
	nodeOf := had.nodeOf()
	for i := range r.Gangs {
		g := r.Gangs[i]
		g.Members, g.Avoid = append([]Member(nil), g.Members...), append([]string(nil), g.Avoid...)
		for at := range g.Members {
			m := &g.Members[at]
			node := nodeOf[m.Pod.UID]
			if node == "" || m.Node != "" {
				continue
			}
			reservation := m.Reservation()
			free := fit.Free{}
			if info := infos[node]; info != nil && m.Class.Eligible(info.Node()) {
				free = fit.FreeOf(info, kept.Reservations[node], &fit.Asker{Priority: reservation.Priority})
			}
			if free.Has(m.Class.Amounts) {
				m.Node = node
				kept.Reservations[node] = append(append([]fit.Reservation(nil), kept.Reservations[node]...), reservation)
				continue
			}
			g.Avoid = append(g.Avoid, node)
		}
		kept.Gangs[i] = g
	}
	return &kept
}

// leaving are the pods that will have gone by a time, by node.
func (r *Request) leaving(by time.Time) map[string]map[types.UID]bool {
	leaving := map[string]map[types.UID]bool{}
	for _, info := range r.Nodes {
		on := map[types.UID]bool{}
		for _, pod := range info.GetPods() {
			if d, ok := r.Departures[pod.GetPod().UID]; ok && !d.At.After(by) {
				on[pod.GetPod().UID] = true
			}
		}
		leaving[info.Node().Name] = on
	}
	return leaving
}

// soonest finds when there is room, and where.
func (p *Planner) soonest(r *Request, now time.Time) Advance {
	var ends []time.Time
	for _, d := range r.Departures {
		ends = append(ends, d.At)
	}
	var plans []Plan
	start, ok := queue.Soonest(ends, now, func(at time.Time) bool {
		later := *r
		later.At = at
		found, reason := p.Plan(&later)
		if reason == "" {
			plans = found // The last that succeeds is the soonest.
		}
		return reason == ""
	})
	if !ok {
		return Advance{}
	}
	a := Advance{Start: start, Reservations: fit.Reservations{}}
	leaving := r.leaving(start)
	for i, plan := range plans {
		for rank, node := range plan.Nodes {
			m := &r.Gangs[i].Members[rank]
			if node == "" {
				node = m.Node
			}
			if node == "" || m.Pod.Spec.NodeName != "" {
				continue
			}
			reservation := m.Reservation()
			reservation.Start, reservation.Leaving = start, leaving[node]
			a.Reservations[node] = append(a.Reservations[node], reservation)
		}
	}
	return a
}
