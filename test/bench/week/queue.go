package week

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// Discipline decides which waiting gangs start. The zero value starts of all that fit the oldest first.
type Discipline struct {
	Name string
	// Strict starts no gang before an older one.
	Strict bool
	// Reserve is how many of the oldest gangs get the nodes that they need at the earliest time at which they could
	// have them, once they have waited for After. A gang starts before these only if that delays none of them.
	Reserve int
	After   time.Duration
	// Hold is the time after which heddle reserves nodes for the first gang that waits; 0 for never.
	Hold time.Duration
	// Estimate is the duration that the queue knows of a gang over the true one; 0 if it knows none.
	Estimate float64
}

// Disciplines are heddle's, at last without its reservation, the order of a plain queue, and backfill by its published
// rules: EASY reserves for the first gang that waits, conservative backfill for all; Slurm's sched/backfill reserves
// for as many as it tests. Users' time limits are a few times the durations.
func Disciplines() []Discipline {
	const all = math.MaxInt
	return []Discipline{
		{Name: "heddle", Hold: 12 * time.Hour},
		{Name: "first in, first out", Strict: true},
		{Name: "EASY, exact durations", Reserve: 1, Estimate: 1},
		{Name: "EASY, limits of 3 times", Reserve: 1, Estimate: 3},
		{Name: "EASY, no durations", Reserve: 1},
		{Name: "conservative, exact durations", Reserve: all, Estimate: 1},
		{Name: "conservative, limits of 3 times", Reserve: all, Estimate: 3},
		{Name: "conservative, no durations", Reserve: all},
		{Name: "first gang after 1 h, 3 times", Reserve: 1, After: time.Hour, Estimate: 3},
		{Name: "first gang after 1 h, no durations", Reserve: 1, After: time.Hour},
		{Name: "heddle, nothing reserved"},
	}
}

// unknown is the duration of a gang without one: it ends after all that is simulated.
const unknown = 4 * Horizon

// known returns the duration that the queue knows.
func (d *Discipline) known(true time.Duration) time.Duration {
	if d.Estimate == 0 {
		return unknown
	}
	return time.Duration(d.Estimate * float64(true))
}

// profile is the number of nodes without any pod from now on, as far as the queue knows.
type profile struct {
	now time.Duration
	// at are the times at which the number changes, in order, the first is now.
	at   []time.Duration
	free []int
	// empty is when each node has no pod any more.
	empty []time.Duration
}

func newProfile(w *week) *profile {
	p := &profile{now: w.now, empty: slices.Repeat([]time.Duration{w.now}, len(w.cluster.free))}
	for g := range w.running {
		ends := g.began + w.discipline.known(g.ends-g.began)
		for _, n := range g.nodes {
			p.empty[n] = max(p.empty[n], ends)
		}
	}
	times := []time.Duration{w.now}
	for n, at := range p.empty {
		if !w.cluster.down[n] { // A queue does not know when a node is repaired.
			times = append(times, at)
		}
	}
	slices.Sort(times)
	for i, at := range times {
		if len(p.at) == 0 || p.at[len(p.at)-1] != at {
			p.at, p.free = append(p.at, at), append(p.free, 0)
		}
		p.free[len(p.free)-1] = i
	}
	return p
}

// step returns the index of the step that begins at a time, which it makes if need be.
func (p *profile) step(at time.Duration) int {
	i, found := slices.BinarySearch(p.at, at)
	if !found {
		p.at = slices.Insert(p.at, i, at)
		p.free = slices.Insert(p.free, i, p.free[i-1])
	}
	return i
}

// take takes nodes away for some time.
func (p *profile) take(nodes int, from, to time.Duration) {
	first := p.step(from)
	for i := range p.free[first:p.step(to)] {
		p.free[first+i] -= nodes
	}
}

// isFree reports whether a number of nodes are free for some time.
func (p *profile) isFree(nodes int, from, to time.Duration) bool {
	first, found := slices.BinarySearch(p.at, from)
	if !found {
		first--
	}
	for i := first; i < len(p.at) && p.at[i] < to; i++ {
		if p.free[i] < nodes {
			return false
		}
	}
	return true
}

// use returns how many nodes a gang needs beside other gangs, and from when on: of a gang of one pod the node may be in
// use.
func (p *profile) use(nodes []int32) (number int, from time.Duration) {
	used := slices.Compact(slices.Sorted(slices.Values(nodes)))
	for _, n := range used {
		from = max(from, p.empty[n])
	}
	return len(used), from
}

// start takes the nodes of a gang that starts now, and reports whether that delays no gang with a reservation.
func (p *profile) start(nodes []int32, lasts time.Duration) bool {
	number, from := p.use(nodes)
	to := p.now + lasts
	if from >= to {
		return true
	}
	if !p.isFree(number, from, to) {
		return false
	}
	p.take(number, from, to)
	for _, n := range nodes {
		p.empty[n] = to
	}
	return true
}

// reserve gives a gang its nodes at the earliest time at which they are free for as long as it lasts.
func (p *profile) reserve(nodes int, lasts time.Duration) {
	for i := range p.at {
		if p.isFree(nodes, p.at[i], p.at[i]+lasts) {
			p.take(nodes, p.at[i], p.at[i]+lasts)
			return
		}
	}
}

// Queue simulates the same weeks under some disciplines, with heddle's placement, and returns the means.
func Queue(plan Plan, disciplines []Discipline, seeds ...uint64) []Result {
	var out []Result
	for _, d := range disciplines {
		var all []Result
		for _, seed := range seeds {
			r := run(plan, &Map{}, d, seed)
			r.Policy = d.Name
			all = append(all, r)
		}
		out = append(out, mean(all))
	}
	return out
}

// PrintQueue writes the waits of each discipline as a table. A star marks those that no other is better than in both
// the mean wait of all and that of the largest gangs.
func PrintQueue(w io.Writer, plan Plan, results []Result) error {
	const head = "%-34s %8s %9s %19s %19s %19s %19s %6s\n"
	var b strings.Builder
	fmt.Fprintf(&b, "the queue for %s, %.0f %% of the GPUs asked for; waits in h:mm, mean / 99th percentile\n",
		plan.Name, 100*plan.Load)
	fmt.Fprintf(&b, head, "", "all", "slowdown", "1 pod", "2-31", "32-99", "100 and more", "used")
	for i := range results {
		r := &results[i]
		all, _ := r.Wait(0, 1, 2, 3)
		name := r.Policy
		if r.isFirst(results) {
			name += " *"
		}
		fmt.Fprintf(&b, "%-34s %8s %9.1f", name, hours(all), r.Slowdown)
		for size := range r.Waits {
			mean, p99 := r.Wait(size)
			fmt.Fprintf(&b, " %19s", hours(mean)+" / "+hours(p99))
		}
		fmt.Fprintf(&b, " %5.1f%%\n", 100*r.Used)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// isFirst reports whether no other result is better in the mean wait of all and in that of the largest gangs.
func (r *Result) isFirst(of []Result) bool {
	all, _ := r.Wait(0, 1, 2, 3)
	large, _ := r.Wait(3)
	return !slices.ContainsFunc(of, func(o Result) bool {
		a, _ := o.Wait(0, 1, 2, 3)
		l, _ := o.Wait(3)
		return a < all && l <= large || a <= all && l < large
	})
}

func hours(d time.Duration) string {
	d = d.Round(time.Minute)
	return fmt.Sprintf("%d:%02d", int(d.Hours()), int(d.Minutes())%60)
}
