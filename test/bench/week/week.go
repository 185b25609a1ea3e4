// Package week simulates a week of gangs on a cluster, to compare where ways
// to place them lead. It owns the trace, the clock and the measures; the ways
// are in policy.go. It measures no time of this machine, and everything in it
// follows from a seed.
package week

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// Horizon is how long a simulation is.
const Horizon = 7 * 24 * time.Hour

// kind is what an event is.
type kind int

const (
	arrival kind = iota
	departure
	failure
	repair
	// sickness makes a node fail gangs though it looks Ready, crash ends a run, look looks at the suspects.
	sickness
	crash
	look
)

type event struct {
	at   time.Duration
	kind kind
	gang *gang
	node int32
	// run is the run of the gang that a departure ends.
	run int
}

// gang is a job of the trace.
type gang struct {
	id       int
	at       time.Duration
	duration time.Duration
	pods     int
	gpus     int32
	// nodes are where it runs; nil while it waits.
	nodes []int32
	since time.Duration
	began time.Duration
	ends  time.Duration
	run   int
	// placed reports that it had a place once.
	placed bool
}

// week is one simulation.
type week struct {
	cluster *cluster
	policy  Policy
	// discipline decides which of the waiting gangs start.
	discipline Discipline
	now        time.Duration
	// events are to come, in order.
	events []event
	// waiting are in the order of the queue.
	waiting []*gang
	running map[*gang]bool
	measure measure
	// holder is nil unless the discipline reserves as heddle does.
	holder *holder
}

// Run simulates a week on a cluster. The trace follows from the cluster and the
// seed, not from the policy.
func Run(plan Plan, policy Policy, seed uint64) Result { return run(plan, policy, Discipline{}, seed) }

func run(plan Plan, policy Policy, discipline Discipline, seed uint64) Result {
	w := &week{cluster: newCluster(plan, seed), policy: policy, discipline: discipline, running: map[*gang]bool{}}
	policy.Start(w.cluster, seed)
	if discipline.Hold > 0 {
		w.holder = newHolder(w.cluster)
	}
	rng := rand.New(rand.NewPCG(seed, 100))
	for _, g := range arrivals(rng, w.cluster) {
		w.push(event{at: g.at, kind: arrival, gang: g})
	}
	for _, f := range failures(rng, w.cluster) {
		w.push(f)
	}
	for len(w.events) > 0 {
		e := w.events[0]
		w.events = w.events[1:]
		if e.at > Horizon {
			break
		}
		w.measure.pass(w.cluster, e.at-w.now)
		w.now = e.at
		w.handle(&e)
		w.schedule()
	}
	w.measure.pass(w.cluster, Horizon-w.now)
	return w.measure.result(policy.Name(), w)
}

func (w *week) push(e event) {
	later := func(o event) bool { return o.at > e.at }
	if at := slices.IndexFunc(w.events, later); at >= 0 {
		w.events = slices.Insert(w.events, at, e)
	} else {
		w.events = append(w.events, e)
	}
}

func (w *week) handle(e *event) {
	switch e.kind {
	case arrival:
		e.gang.since = w.now
		w.waiting = append(w.waiting, e.gang)
	case departure:
		if e.gang.run == e.run && e.gang.nodes != nil {
			w.stop(e.gang)
		}
	case failure:
		w.fail(e.node)
	case repair:
		w.cluster.down[e.node] = false
	case sickness, crash, look: // Only in weeks of repair.
	}
}

// fail takes a node away. Gangs that had a pod there get another node for it
// or, if there is none now, wait and start again.
func (w *week) fail(node int32) {
	if w.cluster.down[node] {
		return
	}
	w.cluster.down[node] = true
	w.push(event{at: w.now + repairTime, kind: repair, node: node})
	var hit []*gang
	for g := range w.running {
		if slices.Contains(g.nodes, node) {
			hit = append(hit, g)
		}
	}
	slices.SortFunc(hit, func(a, b *gang) int { return a.id - b.id })
	for _, g := range hit {
		kept := slices.Clone(g.nodes)
		for i, n := range kept {
			if n == node {
				kept[i] = nowhere
			}
		}
		w.stop(g)
		w.cluster.take(kept, g.gpus, 1)
		next := w.policy.Place(w.cluster, &Ask{Pods: g.pods, GPUs: g.gpus, Placed: kept})
		w.cluster.take(kept, g.gpus, -1)
		if next == nil {
			g.since = w.now
			w.waiting = append(w.waiting, g)
			continue
		}
		w.start(g, next, g.ends-w.now, 0)
	}
}

// schedule starts waiting gangs, the oldest first, as far as the discipline lets it.
func (w *week) schedule() {
	slices.SortFunc(w.waiting, func(a, b *gang) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.id, b.id)) })
	d, reserved := &w.discipline, 0
	var p *profile
	if d.Reserve > 0 && len(w.waiting) > 0 {
		p = newProfile(w)
	}
	var held []int32
	left := w.waiting[:0]
	for _, g := range w.waiting {
		lasts := d.known(g.duration)
		if !d.Strict || len(left) == 0 {
			nodes := w.placeBeside(held, g)
			if nodes != nil && (p == nil || p.start(nodes, lasts)) {
				w.start(g, nodes, g.duration, possible(w.cluster, g))
				continue
			}
		}
		left = append(left, g)
		if reserved < d.Reserve && w.now-g.since >= d.After {
			p.reserve(g.pods, lasts)
			reserved++
		}
		if w.holder != nil && held == nil && w.now-g.since >= d.Hold {
			held = w.holder.hold(w, g)
		}
	}
	clear(w.waiting[len(left):])
	w.waiting = left
}

// placeBeside finds nodes for a gang beside GPUs that are reserved.
func (w *week) placeBeside(held []int32, g *gang) []int32 {
	c := *w.cluster
	if held != nil {
		c.free = slices.Clone(c.free)
		for n, gpus := range held {
			c.free[n] = max(0, c.free[n]-gpus)
		}
	}
	return w.policy.Place(&c, &Ask{Pods: g.pods, GPUs: g.gpus})
}

// start lets a gang run; then is the fewest groups that have room for it, 0 if
// it is there in part.
func (w *week) start(g *gang, nodes []int32, lasts time.Duration, then int) {
	w.cluster.take(nodes, g.gpus, 1)
	if !g.placed {
		w.measure.wait(g, w.now)
	}
	g.nodes, g.placed, g.began, g.ends = nodes, true, w.now, w.now+lasts
	g.run++
	w.running[g] = true
	w.measure.placed(w.cluster, g, then)
	w.push(event{at: g.ends, kind: departure, gang: g, run: g.run})
}

func (w *week) stop(g *gang) {
	w.cluster.take(g.nodes, g.gpus, -1)
	g.nodes = nil
	delete(w.running, g)
}
