package planner

import (
	"cmp"
	"context"
	"slices"
)

// choice searches for the best set of victims that makes room. It is exact within its bounds: sets
// are tried in the order of [Victims.compare]. Beyond them it drops the unnecessary victims from a
// sufficient set.
type choice struct {
	*Victims
	// enough reports whether a set makes room, and which of it are needed.
	enough func(set []int) (needed []int, ok bool)
	// gpus holds the number of GPUs that each victim frees, and lacking the least number that must
	// become free, or 0.
	gpus    []int64
	lacking int64
	// among are the victims to choose from, in ascending order.
	among []int
	// maxTrials bounds the sets that are tried.
	maxTrials int

	trials, sets int
	found        bool
	best         []int
}

// maxSets bounds the sets of victims that are looked at without a trial.
const maxSets = 100_000

// choose returns the best set that it finds before the context ends; false if all victims together
// are not enough.
func (c *choice) choose(ctx context.Context) (best []int, ok bool) {
	if _, ok := c.enough(nil); ok {
		return nil, true // Pods that terminate make the room.
	}
	needed, ok := c.enough(c.among)
	if !ok {
		return nil, false
	}
	for size := 1; size <= len(c.among) && !c.done(ctx); size++ {
		c.exact(ctx, size, len(c.among), nil)
	}
	if !c.found || c.violations(c.best) > 0 && c.over(ctx) {
		c.reprieve(ctx, needed)
	}
	return c.best, c.found
}

func (c *choice) over(ctx context.Context) bool {
	return c.trials >= c.maxTrials || c.sets >= maxSets || ctx.Err() != nil
}

// done reports that the search is over, or that no better set can follow.
func (c *choice) done(ctx context.Context) bool {
	return c.over(ctx) || c.found && c.violations(c.best) == 0
}

// exact tries all sets of a size that have victims below an index beside some others, those
// with the least valuable victims first.
func (c *choice) exact(ctx context.Context, size, below int, beside []int) {
	if size == 0 {
		c.sets++
		if !c.mayFit(beside) || c.found && c.compare(beside, c.best) >= 0 {
			return
		}
		c.trials++
		if _, ok := c.enough(beside); ok {
			c.best, c.found = beside, true
		}
		return
	}
	for i := size - 1; i < below && !c.done(ctx); i++ {
		c.exact(ctx, size-1, i, append([]int{c.among[i]}, beside...))
	}
}

// mayFit reports whether a set frees enough GPUs.
func (c *choice) mayFit(set []int) bool {
	freed := int64(0)
	for _, i := range set {
		if c.lacking > 0 {
			freed += c.gpus[i]
		}
	}
	return freed >= c.lacking
}

// reprieve drops victims from a set that is enough, half of it at once, then fewer: first those
// that break a budget, then those of few pods, so that few large gangs remain, then the most
// valuable.
func (c *choice) reprieve(ctx context.Context, all []int) {
	set := slices.SortedFunc(slices.Values(all), func(a, b int) int {
		return cmp.Or(cmp.Compare(c.violations([]int{b}), c.violations([]int{a})),
			cmp.Compare(len(c.victims[a].pods), len(c.victims[b].pods)), cmp.Compare(b, a))
	})
	trials := 0
	for n := (len(set) + 1) / 2; n > 0; n /= 2 {
		for at := 0; at < len(set) && trials < c.maxTrials && ctx.Err() == nil; trials++ {
			rest := slices.Concat(set[:at], set[min(at+n, len(set)):])
			needed, ok := c.enough(rest)
			if !ok {
				at += n
				continue
			}
			isNeeded := func(i int) bool { return slices.Contains(needed, i) }
			// Those that were kept stay before the next.
			at = len(slices.DeleteFunc(slices.Clone(set[:at]), func(i int) bool { return !isNeeded(i) }))
			set = slices.DeleteFunc(rest, func(i int) bool { return !isNeeded(i) })
		}
	}
	slices.Sort(set)
	if !c.found || c.compare(set, c.best) < 0 {
		c.best, c.found = set, true
	}
}
