package fabrictest

import "slices"

// Outcome is the result of a bisection.
type Outcome struct {
	// Whole is the bus bandwidth of all nodes in GB/s, Best the best one of a run with all rails.
	Whole float64 `json:"gbps"`
	Best  float64 `json:"best"`
	Runs  int     `json:"runs"`
	// Nodes has the slow node, or the smallest set of nodes that is slow while both of its halves are not: the links
	// between them. It is empty if the collective is not slow.
	Nodes []string `json:"slow,omitempty"`
	// Rail is the slow node's slow rail, nil if no single one is slow.
	Rail *int32 `json:"rail,omitempty"`
}

// bisection has what the runs have shown.
type bisection struct {
	Outcome
	limit float64
	run   func(nodes []string, rail *int32) (busbw float64, err error)
}

// Bisect looks for the node that slows a collective of nodes, and for the node's slow rail, in at most 2 log2(nodes) +
// rails runs: halves first, then one of the last pair beside a node outside it, then rails. limit is the least bus
// bandwidth in GB/s; 0 takes MinBandwidth of the best run. run returns the bus bandwidth of at least two nodes by one
// rail, or by all with nil, and 0 if the collective failed; the first error ends the search.
func Bisect(
	nodes []string, rails []int32, limit float64, run func(nodes []string, rail *int32) (busbw float64, err error),
) (Outcome, error) {
	b := &bisection{limit: limit, run: run}
	err := b.search(nodes, rails)
	return b.Outcome, err
}

func (b *bisection) measure(nodes ...string) (float64, error) {
	value, err := b.run(nodes, nil)
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

func (b *bisection) search(all []string, rails []int32) (err error) {
	if b.Whole, err = b.measure(all...); err != nil || b.limit > 0 && !b.slow(b.Whole) {
		return err
	}
	part, other := all, ""
	for len(part) > 2 {
		half, err := b.slowHalf(part)
		if err != nil {
			return err
		}
		if half == nil {
			break // The links between the halves, or nothing.
		}
		outside := func(node string) bool { return !slices.Contains(half, node) }
		part, other = half, part[slices.IndexFunc(part, outside)]
	}
	if other != "" || b.slow(b.Whole) {
		b.Nodes = part
	}
	if len(part) > 2 || other == "" {
		return nil
	}
	value, err := b.measure(other, part[0])
	if err != nil {
		return err
	}
	b.Nodes = part[1:]
	if b.slow(value) {
		b.Nodes = part[:1]
	}
	return b.rails(other, rails)
}

// slowHalf returns the half of a set of nodes that is slow, nil if none is. The halves of three nodes share one.
func (b *bisection) slowHalf(part []string) ([]string, error) {
	n := (len(part) + 1) / 2
	first, second := part[:n], part[min(n, len(part)-2):]
	one, err := b.measure(first...)
	if err != nil || b.slow(one) {
		return first, err
	}
	two, err := b.measure(second...)
	switch {
	case err != nil || b.slow(two):
		return second, err
	case b.slow(one):
		return first, nil
	}
	return nil, nil
}

// rails measures each rail between the slow node and another one.
func (b *bisection) rails(other string, rails []int32) error {
	if len(rails) < 2 {
		return nil
	}
	values := make([]float64, len(rails))
	for i := range rails {
		var err error
		b.Runs++
		if values[i], err = b.run([]string{other, b.Nodes[0]}, &rails[i]); err != nil {
			return err
		}
	}
	usual := slices.Sorted(slices.Values(values))[len(rails)/2] // Of two rails the faster one.
	slow := func(value float64) bool { return value < MinBandwidth*usual }
	if at := slices.IndexFunc(values, slow); at >= 0 && !slices.ContainsFunc(values[at+1:], slow) {
		b.Rail = &rails[at]
	}
	return nil
}
