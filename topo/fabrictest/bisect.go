package fabrictest

import "slices"

// Run is one run of a collective.
type Run struct {
	// Nodes are indexes of the nodes, at least two.
	Nodes []int
	// Rail is the index of the only rail that the run uses, -1 for all.
	Rail int
}

// Outcome is the result of a bisection.
type Outcome struct {
	// Slow reports that the collective is slow.
	Slow bool
	// Nodes has the slow node, or the smallest set of nodes that is slow while both of its halves are not: the links
	// between them.
	Nodes []int
	// Rail is the index of the slow node's slow rail, -1 if no single one is slow.
	Rail int
	// Whole is the bus bandwidth of all nodes in GB/s, Best the best one of a run with all rails.
	Whole, Best float64
	Runs        int
}

// bisection has what the runs have shown.
type bisection struct {
	Outcome
	limit float64
	run   func(Run) (busbw float64, err error)
}

// Bisect looks for the node that slows a collective of n nodes, and for the node's slow rail, in at most 2 log2(n) +
// rails runs: halves first, then one of the last pair beside a node outside it, then rails. limit is the least bus
// bandwidth in GB/s; 0 takes MinBandwidth of the best run. run returns the bus bandwidth of a run, 0 if the collective
// failed; the first error ends the search.
func Bisect(n, rails int, limit float64, run func(Run) (busbw float64, err error)) (Outcome, error) {
	b := &bisection{Outcome: Outcome{Rail: -1}, limit: limit, run: run}
	part := make([]int, n)
	for i := range part {
		part[i] = i
	}
	err := b.search(part, rails)
	b.Slow = b.Slow || b.slow(b.Whole)
	return b.Outcome, err
}

func (b *bisection) measure(nodes []int) (float64, error) {
	value, err := b.run(Run{nodes, -1})
	b.Runs++
	b.Best = max(b.Best, value)
	return value, err
}

func (b *bisection) slow(value float64) bool {
	if b.limit > 0 {
		return value < b.limit
	}
	return value < MinBandwidth*b.Best
}

func (b *bisection) search(all []int, rails int) error {
	value, err := b.measure(all)
	if b.Whole = value; err != nil || b.limit > 0 && !b.slow(value) {
		return err
	}
	part, other := all, -1
	for len(part) > 2 {
		half, err := b.slowHalf(part)
		if err != nil {
			return err
		}
		if half == nil { // The links between the halves, or nothing.
			if b.slow(value) {
				b.Nodes = part
			}
			return nil
		}
		outside := func(i int) bool { return !slices.Contains(half, i) }
		part, other, value = half, part[slices.IndexFunc(part, outside)], 0
	}
	if other < 0 {
		if b.slow(value) {
			b.Nodes = part
		}
		return nil
	}
	if value, err = b.measure([]int{other, part[0]}); err != nil {
		return err
	}
	b.Nodes = part[1:]
	if b.slow(value) {
		b.Nodes = part[:1]
	}
	b.Slow = true
	return b.rails(other, rails)
}

// slowHalf returns the half of a set of nodes that is slow, nil if none is. Those of three nodes share one.
func (b *bisection) slowHalf(part []int) ([]int, error) {
	n := (len(part) + 1) / 2
	first, second := part[:n], part[min(n, len(part)-2):]
	one, err := b.measure(first)
	if err != nil || b.slow(one) {
		return first, err
	}
	two, err := b.measure(second)
	switch {
	case err != nil || b.slow(two):
		return second, err
	case b.slow(one):
		return first, nil
	}
	return nil, nil
}

// rails measures each rail between the slow node and another one.
func (b *bisection) rails(other, rails int) error {
	if rails < 2 {
		return nil
	}
	values := make([]float64, rails)
	for rail := range rails {
		var err error
		b.Runs++
		if values[rail], err = b.run(Run{[]int{other, b.Nodes[0]}, rail}); err != nil {
			return err
		}
	}
	usual := slices.Sorted(slices.Values(values))[rails/2] // Of two rails the faster one.
	slow := func(value float64) bool { return value < MinBandwidth*usual }
	if at := slices.IndexFunc(values, slow); at >= 0 && !slices.ContainsFunc(values[at+1:], slow) {
		b.Rail = at
	}
	return nil
}
