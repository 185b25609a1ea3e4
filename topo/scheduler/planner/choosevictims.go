package planner

import (
	"cmp"
	"slices"
)

// room is what victims must make: nodes for gangs, or for a pod of none.
type room interface {
	// mayFit reports whether there may be room without a set of victims, as far as amounts show.
	mayFit(set []int) bool
	// fits reports whether there is, and needs whether a victim must go for it, by the last set
	// that was enough.
	fits(set []int) bool
	needs(victim int) bool
	// size is how much a victim frees of what is lacking.
	size(victim int) int64
}

// choice is a search for the best set of some victims that makes room. What fits takes time, so
// that only so many sets are tried: then those go first that are needed least.
type choice struct {
	*Victims
	room room
	// among are the victims, in ascending order.
	among []int
	// maxTrials bounds the sets that are tried, and again those of each of the two searches that
	// follow where it is over; maxSets those that are looked at.
	maxTrials, maxSets int

	trials, sets int
	found        bool
	best         []int
}

// choose returns the best set that it finds; false if all of the victims are not enough.
func (c *choice) choose() (best []int, ok bool) {
	if c.room.fits(nil) {
		return nil, true // Once those are gone that leave anyway. It is no set, and does not count.
	}
	if !c.try(c.among) {
		return nil, false
	}
	widest := c.needed(c.among)
	for size := 1; size <= len(c.among) && !c.done(); size++ {
		c.exact(size, len(c.among), nil)
	}
	if c.over() && (!c.found || c.violations(c.best) > 0) {
		// Those who are needed least first: what breaks a budget, then either small
		// victims, so that few large ones stay, or those that are worth most.
		c.spare(widest, c.room.size)
		c.spare(widest, func(int) int64 { return 0 })
	}
	return c.best, c.found
}

func (c *choice) over() bool { return c.trials >= c.maxTrials || c.sets >= c.maxSets }

// done reports that no set is better that comes after the best.
func (c *choice) done() bool { return c.over() || c.found && c.violations(c.best) == 0 }

func (c *choice) try(set []int) bool {
	c.trials++
	return c.room.fits(set)
}

// exact tries all sets of a size that have only victims below an index beside some: the
// set first of which the most valuable victim is worth least.
func (c *choice) exact(size, below int, beside []int) {
	if size == 0 {
		c.sets++
		if c.room.mayFit(beside) && (!c.found || c.compare(beside, c.best) < 0) && c.try(beside) {
			c.best, c.found = beside, true
		}
		return
	}
	for i := size - 1; i < below && !c.done(); i++ {
		c.exact(size-1, i, append([]int{c.among[i]}, beside...))
	}
}

// spare leaves out of a set that is enough what is not needed, half of it at once, then fewer:
// those that break a budget first, then those of small size, then of high worth.
func (c *choice) spare(enough []int, size func(victim int) int64) {
	until := c.trials + c.maxTrials
	set := slices.SortedFunc(slices.Values(enough), func(a, b int) int {
		return cmp.Or(cmp.Compare(c.violations([]int{b}), c.violations([]int{a})),
			cmp.Compare(size(a), size(b)), cmp.Compare(b, a))
	})
	for n := (len(set) + 1) / 2; n > 0; n /= 2 {
		for at := 0; at < len(set) && c.trials < until; {
			rest := slices.Concat(set[:at], set[min(at+n, len(set)):])
			if c.try(rest) {
				// Those that were tried in vain stay behind.
				set, at = c.needed(rest), len(c.needed(set[:at]))
			} else {
				at += n
			}
		}
	}
	slices.Sort(set)
	if !c.found || c.compare(set, c.best) < 0 {
		c.best, c.found = set, true
	}
}

// needed are the victims of a set that must go, by what was tried last.
func (c *choice) needed(set []int) (out []int) {
	for _, i := range set {
		if c.room.needs(i) {
			out = append(out, i)
		}
	}
	return out
}
