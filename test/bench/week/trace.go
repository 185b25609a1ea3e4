package week

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// single is the share of gangs that are one pod.
	single = 0.6
	// steepness is the exponent of the sizes of the others, in nodes: a gang of
	// at least twice the size is that power of two rarer.
	steepness = 1.0
	// largest is the largest gang's share of the cluster.
	largest = 0.25
	// The logarithm of durations is normal: half of them are over the median.
	median = 3 * time.Hour
	spread = 1.2
	// between is the time between failures of one node.
	between    = 60 * 24 * time.Hour
	repairTime = 4 * time.Hour
)

// arrivals is the trace: sizes by a power law, durations log-normal, arrivals
// at random, as many as the load asks for. It begins on an empty cluster.
func arrivals(rng *rand.Rand, c *cluster) (out []*gang) {
	budget := c.plan.Load * float64(len(c.free)*perNode) * Horizon.Hours()
	for budget > 0 {
		g := &gang{pods: 1, gpus: perNode}
		if rng.Float64() < single {
			g.gpus = []int32{1, 2, 4, perNode}[rng.IntN(4)]
		} else {
			most := largest * float64(len(c.free))
			// The inverse of the distribution function, cut at most.
			u := rng.Float64() * (1 - math.Pow(2/most, steepness))
			g.pods = int(2 * math.Pow(1-u, -1/steepness))
		}
		g.duration = time.Duration(float64(median) * math.Exp(spread*rng.NormFloat64()))
		g.duration = min(g.duration, Horizon/4)
		g.at = time.Duration(rng.Int64N(int64(Horizon)))
		budget -= float64(g.pods*int(g.gpus)) * min(g.duration, Horizon-g.at).Hours()
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b *gang) int { return int(a.at - b.at) })
	for i, g := range out {
		g.id = i
	}
	return out
}

// failures are when which node goes away.
func failures(rng *rand.Rand, c *cluster) (out []event) {
	mean := between / time.Duration(len(c.free))
	for at := time.Duration(0); ; {
		at += time.Duration(rng.ExpFloat64() * float64(mean))
		if at > Horizon {
			return out
		}
		out = append(out, event{at: at, kind: failure, node: int32(rng.IntN(len(c.free)))})
	}
}
