package week

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/topo/scheduler/queue"
)

// This file is what the scheduler does for gangs that wait, by the functions that it
// calls: queue.Due decides which gang gets a reservation, queue.Soonest when it
// starts, queue.Binds and queue.Charge what it keeps from others.

// advance is the room that is reserved for a gang.
type advance struct {
	start time.Time
	// nodes are those of its pods.
	nodes []int32
	// need and leaving are GPUs by node: what the gang takes, and what those gangs hold
	// that will be gone, which are counted.
	need, leaving map[int32]int32
	counted       map[*gang]bool
}

// clock is a time of the simulation as the scheduler has it.
func clock(d time.Duration) time.Time { return time.Unix(0, 0).Add(d) }

// stated is when a gang would end that begins now; zero if it does not state that.
func (g *gang) stated(now time.Duration) (end time.Time) {
	if g.states > 0 {
		end = clock(now + g.states)
	}
	return end
}

// queueKey is what its place in the queue depends on.
func (g *gang) queueKey() queue.Gang {
	out := queue.Gang{Created: clock(g.at), Name: fmt.Sprintf("%06d", g.id), Rejected: clock(g.since)}
	if g.advance != nil {
		out.Start = g.advance.start
	}
	return out
}

func byQueueKey(a, b *gang) int {
	first, second := a.queueKey(), b.queueKey()
	return first.Compare(&second)
}

// count takes note of a gang that is gone when the reservation starts.
func (a *advance) count(g *gang) {
	a.counted[g] = true
	for _, n := range g.nodes {
		a.leaving[n] += g.gpus
	}
}

// place finds nodes for a gang beside what is reserved for others.
func (w *week) place(g *gang, a *Ask) []int32 {
	whole := w.cluster.free
	w.cluster.free = w.beside(g, g.stated(w.now))
	nodes := w.policy.Place(w.cluster, a)
	w.cluster.free = whole
	return nodes
}

// beside is what is free now for a gang with an end.
func (w *week) beside(g *gang, end time.Time) []int32 {
	free := w.cluster.free
	for _, other := range w.reserved {
		if other == g || !queue.Binds(other.advance.start, end) {
			continue
		}
		if &free[0] == &w.cluster.free[0] {
			free = slices.Clone(free)
		}
		for n, need := range other.advance.need {
			free[n] -= min(int32(queue.Charge(int64(need), int64(other.advance.leaving[n]))), free[n])
		}
	}
	return free
}

// reserve gives reservations to the gangs that are to have one.
func (w *week) reserve() {
	keys := make([]queue.Gang, len(w.waiting))
	for i, g := range w.waiting {
		keys[i] = g.queueKey()
	}
	for _, i := range queue.Due(keys, w.policy.ReserveAfter(), clock(w.now)) {
		g := w.waiting[i]
		had := g.advance
		w.giveBack(g)
		if had == nil || !w.advance(g, w.keep(g, had)) {
			w.advance(g, &Ask{Pods: g.pods, GPUs: g.gpus})
		}
	}
}

// keep are the pods of a reservation that have room by now.
func (w *week) keep(g *gang, had *advance) *Ask {
	a := &Ask{Pods: g.pods, GPUs: g.gpus, Placed: slices.Clone(had.nodes)}
	free := slices.Clone(w.beside(g, time.Time{}))
	for rank, n := range a.Placed {
		if w.cluster.down[n] || free[n] < g.gpus {
			a.Placed[rank] = nowhere
			a.Avoid = append(a.Avoid, n)
			continue
		}
		free[n] -= g.gpus
	}
	return a
}

// advance reserves room for a gang where it is soonest.
func (w *week) advance(g *gang, a *Ask) bool {
	now := clock(w.now)
	ends := map[*gang]time.Time{}
	var times []time.Time
	for r := range w.running {
		ends[r] = queue.End(clock(r.began), r.states, now)
		times = append(times, ends[r])
	}
	whole := w.cluster.free
	var nodes []int32
	start, ok := queue.Soonest(times, now, func(at time.Time) bool {
		w.cluster.free = w.freeAt(at, ends, a)
		found := w.policy.Place(w.cluster, a)
		if found != nil {
			nodes = found // The last that succeeds is the soonest.
		}
		return found != nil
	})
	w.cluster.free = whole
	if !ok {
		return false
	}
	g.advance = &advance{
		start: start, nodes: nodes, need: map[int32]int32{}, leaving: map[int32]int32{}, counted: map[*gang]bool{},
	}
	for _, n := range nodes {
		g.advance.need[n] += g.gpus
	}
	for r, end := range ends {
		if !end.After(start) {
			g.advance.count(r)
		}
	}
	w.reserved = append(w.reserved, g)
	slices.SortFunc(w.reserved, func(a, b *gang) int { return cmp.Compare(a.id, b.id) })
	return true
}

// freeAt are the GPUs of each node that a gang could have at a time, by the ends of
// those that run.
func (w *week) freeAt(at time.Time, ends map[*gang]time.Time, a *Ask) []int32 {
	free := slices.Clone(w.cluster.free)
	for r, end := range ends {
		if end.After(at) {
			continue
		}
		for _, n := range r.nodes {
			free[n] += r.gpus
		}
	}
	for _, other := range w.reserved {
		for n, need := range other.advance.need {
			free[n] = max(0, free[n]-need)
		}
	}
	for _, n := range a.Placed {
		if n != nowhere {
			free[n] = max(0, free[n]-a.GPUs)
		}
	}
	for _, n := range a.Avoid {
		free[n] = 0
	}
	return free
}

// giveBack ends the reservation of a gang.
func (w *week) giveBack(g *gang) {
	g.advance = nil
	w.reserved = slices.DeleteFunc(w.reserved, func(other *gang) bool { return other == g })
}

// started and stopped keep count of what leaves reserved nodes.
func (w *week) started(g *gang) {
	for _, other := range w.reserved {
		if !queue.Binds(other.advance.start, g.stated(w.now)) {
			other.advance.count(g)
		}
	}
}

func (w *week) stopped(g *gang) {
	for _, other := range w.reserved {
		if a := other.advance; a.counted[g] {
			delete(a.counted, g)
			for _, n := range g.nodes {
				a.leaving[n] -= g.gpus
			}
		}
	}
}

// lost has the reservations made again that have a node which is gone.
func (w *week) lost(node int32) {
	for _, g := range w.reserved {
		if g.advance.need[node] > 0 {
			g.advance.start = clock(w.now - 1)
		}
	}
}
