// Package queue decides in which order gangs are tried, and for which of them room
// is reserved in advance. It is pure: the scheduler and the simulation of test/bench
// call the same functions.
//
// Gangs come by priority, then by age. One that finds no room lets the others pass, or
// the cluster would stand still; so a large gang could wait for ever while small ones
// come and go. One that has waited for long therefore gets a reservation of
// the place that is expected to be free soonest. From then on others get there only
// what the gang leaves, and until the reservation starts what ends before (backfill).
package queue

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

const (
	// MaxReservations bounds the reservations of all priorities together. Each keeps
	// room empty for a while.
	MaxReservations = 4
	// minRemaining is how much longer a pod is expected to run that states no end, if it
	// has not run for longer. See [End].
	minRemaining = time.Hour
	// minNotice is how far ahead a reservation starts at least: it is made again when its
	// start has passed.
	minNotice = time.Minute
)

// Gang is a gang without nodes, as much of it as its turn depends on.
type Gang struct {
	Priority int32
	// Created is when its first pod, or its PodGroup, was made, and Name what keeps
	// those of one age in order.
	Created time.Time
	Name    string
	// Rejected is since when it finds no room; zero while it is not complete.
	Rejected time.Time
	// Start is that of its reservation; zero without one.
	Start time.Time
}

// Compare is negative if g comes before another gang.
func (g *Gang) Compare(o *Gang) int {
	return cmp.Or(cmp.Compare(o.Priority, g.Priority), g.Created.Compare(o.Created), cmp.Compare(g.Name, o.Name))
}

// Due are the indexes of the gangs that are to get a reservation now: the first of
// each priority that has waited for so long, unless another one of this priority
// has one, and those of which the reservation has started without them. None is due
// after zero.
func Due(gangs []Gang, after time.Duration, now time.Time) (due []int) {
	if after <= 0 {
		return nil
	}
	reserved := map[int32]bool{}
	var waiting []int
	for i := range gangs {
		switch g := &gangs[i]; {
		case !g.Start.IsZero():
			reserved[g.Priority] = true
			if now.After(g.Start) {
				due = append(due, i)
			}
		case !g.Rejected.IsZero() && now.Sub(g.Rejected) >= after:
			waiting = append(waiting, i)
		}
	}
	slices.SortFunc(waiting, func(a, b int) int { return gangs[a].Compare(&gangs[b]) })
	for _, i := range waiting {
		if priority := gangs[i].Priority; !reserved[priority] && len(reserved) < MaxReservations {
			reserved[priority] = true
			due = append(due, i)
		}
	}
	return due
}

// End is when a pod is expected to be gone that began to run at a time, and states for
// how long; zero if it does not. Without a statement, or after one that was wrong, it
// is expected to run for as long again as it has: durations of jobs have heavy tails,
// and what has run for days is not about to end.
func End(began time.Time, duration time.Duration, now time.Time) time.Time {
	if end := began.Add(duration); duration > 0 && end.After(now) {
		return end
	}
	return now.Add(max(now.Sub(began), minRemaining))
}

// Soonest is the first of some times at which there is room; false if there is at
// none. Room at one time is room at all later ones.
func Soonest(ends []time.Time, now time.Time, room func(time.Time) bool) (start time.Time, ok bool) {
	times := []time.Time{now.Add(minNotice)}
	for _, end := range ends {
		// To the minute: fewer times are tried.
		times = append(times, end.Add(minNotice-1).Truncate(minNotice))
	}
	slices.SortFunc(times, time.Time.Compare)
	times = slices.CompactFunc(times, time.Time.Equal)
	times = times[slices.IndexFunc(times, func(t time.Time) bool { return !t.Before(now.Add(minNotice)) }):]
	at := sort.Search(len(times), func(i int) bool { return room(times[i]) })
	if at == len(times) {
		return time.Time{}, false
	}
	return times[at], true
}

// Binds reports whether a reservation keeps out a pod that would end at a time, zero if
// that is unknown.
func Binds(start, end time.Time) bool { return end.IsZero() || end.After(start) }

// Charge is how much of what is free now a reservation takes: what will be free by
// itself when the leaving pods are gone need not be.
func Charge(reserved, leaving int64) int64 { return max(0, reserved-leaving) }
