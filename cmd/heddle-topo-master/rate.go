package main

import (
	"fmt"
	"math"
	"strconv"
)

// rate is how many requests a second the API server gets from this process, and how many
// at once.
type rate struct {
	qps   float64
	burst int
}

// The environment that operators of such suites set. The second spelling of
// the burst is the one in their commands.
const (
	envQPS        = "CLIENT_GO_QPS"
	envBurst      = "CLIENT_GO_BURST"
	envBurstField = "CLIENT_GO_BRUST"
)

// Without them a fleet of 16,384 nodes gets its first labels in under three
// minutes.
const (
	defaultQPS   = 100
	defaultBurst = 200
)

// readRate reads the environment. What is no number above 0 is an error, and so
// are two spellings that disagree.
func readRate(lookup func(string) (string, bool)) (rate, error) {
	r := rate{defaultQPS, defaultBurst}
	if text, ok := lookup(envQPS); ok {
		v, err := strconv.ParseFloat(text, 32)
		if err != nil || !(v > 0) || math.IsInf(v, 0) {
			return r, fmt.Errorf("%s: %.40q is no number above 0", envQPS, text)
		}
		r.qps = v
	}
	first := ""
	for _, name := range []string{envBurst, envBurstField} {
		text, ok := lookup(name)
		if !ok {
			continue
		}
		v, err := strconv.ParseInt(text, 10, 32)
		if err != nil || v < 1 {
			return r, fmt.Errorf("%s: %.40q is no whole number above 0", name, text)
		}
		if first != "" && int(v) != r.burst {
			return r, fmt.Errorf("%s is %d and %s is %d: set one of them", first, r.burst, name, v)
		}
		first, r.burst = name, int(v)
	}
	return r, nil
}
