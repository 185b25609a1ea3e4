package quota

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/heddle-dev/heddle/api/config"
)

// MaxGPUs bounds the GPUs of a node that [Place] considers.
const MaxGPUs = 64

// Place chooses r.GPUs different GPUs that can take the request, and returns
// their places in gpus, sorted, in the storage of out. It returns false if too
// few GPUs can: [Explain] reports why. It is exact and deterministic, and
// allocates nothing if out has room. The request's own placement wins over how.
//
// Binpack keeps other GPUs idle, and the remainder of used ones useful. The
// remainder of a GPU is v percent and m MiB. A GPU with plenty of memory and no
// compute takes no pod, so neither the sum nor the larger of the two measures
// the remainder. Its worth is v*m: of all requests (1 to 100
// percent, 1 MiB to the GPU's memory) that is the number that it could still
// take, so if every request is equally likely, the one that comes next fits with
// this probability, but for a constant. The loss of a request (dv, dm) is
//
//	v*m - (v-dv)*(m-dm) = v*dm + m*dv - dv*dm
//
// which is least on the GPU with the least left, each resource weighted by how
// much is asked of the other: what asks for much compute and little memory goes
// where memory is short. A used GPU comes before an idle one whatever the
// loss: the idle one alone can take an exclusive request or one of another QoS
// policy. So binpack orders GPUs by
//
//	(idle, loss, worth afterwards, idle GPUs in the zone if it is one, place)
//
// The third decides if one resource is not requested, and the fourth breaks the smallest NVLink
// zone.
//
// Spread minimizes how much consumers disturb each other. It orders GPUs by
//
//	(fraction of the scarcer resource that is taken afterwards, the other's,
//	consumers, idle GPUs in the zone if it is one, place)
//
// fractions in millionths.
//
// Several GPUs work together, so how they are joined comes before what they cost. They come from
// one NVLink zone if one has enough GPUs that take the request: the one with the fewest of these,
// so that larger zones stay for larger requests; and from one NUMA node of it if one has enough,
// again the one with the fewest. If no zone has enough, they come from one NUMA node if one has
// enough, and from as few zones as possible: the largest whole, then the smallest that has the
// rest. Of groups of one size the one with the least sum of costs is taken, added up number by
// number, and in a group the GPUs that cost least. A GPU without a zone or with an unknown NUMA
// node is a separate group.
func Place(gpus []GPU, r *Request, how config.Placement, out []int) ([]int, bool) {
	out = out[:0]
	if r.GPUs < 1 || r.GPUs > min(len(gpus), MaxGPUs) {
		return out, false
	}
	s := search{gpus: gpus[:min(len(gpus), MaxGPUs)]}
	able := s.assess(r, cmp.Or(r.Placement, how))
	if bits.OnesCount64(able) < r.GPUs {
		return out, false
	}
	for chosen := s.choose(able, r.GPUs); chosen != 0; chosen &= chosen - 1 {
		out = append(out, bits.TrailingZeros64(chosen))
	}
	return out, true
}

// search is one call of Place. Bit i of its masks is gpus[i].
type search struct {
	gpus  []GPU
	costs [MaxGPUs]cost
}

// assess finds the GPUs that can take the request, and what each costs.
func (s *search) assess(r *Request, how config.Placement) (able uint64) {
	var idle uint64
	for i := range s.gpus {
		c := &s.gpus[i]
		if !c.Reject(r).None() {
			continue
		}
		able |= 1 << i
		if c.Consumers == 0 {
			idle |= 1 << i
		}
		if how == config.PlacementSpread {
			s.costs[i] = c.load(r)
		} else {
			s.costs[i] = c.loss(r)
		}
	}
	for rest := idle; rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros64(rest)
		s.costs[i][3] = int64(bits.OnesCount64(s.group(i, idle, zone)))
	}
	return able
}

// choose takes n of the GPUs in able, which has as many.
func (s *search) choose(able uint64, n int) uint64 {
	if n == 1 {
		return s.cheapest(able, 1)
	}
	if in := s.smallest(able, n, zone); in != 0 {
		if node := s.smallest(in, n, numa); node != 0 {
			in = node
		}
		return s.cheapest(in, n)
	}
	if node := s.smallest(able, n, numa); node != 0 {
		able = node
	}
	var chosen uint64
	for n > 0 {
		in := s.smallest(able, n, zone)
		if in == 0 {
			in = s.largest(able)
		}
		got := s.cheapest(in, min(n, bits.OnesCount64(in)))
		chosen |= got
		able &^= got
		n -= bits.OnesCount64(got)
	}
	return chosen
}

// level is the kind of link that joins GPUs into groups.
type level int

const (
	zone level = iota
	numa
)

// group returns the GPUs of a set that are joined with GPU i, and i itself.
func (s *search) group(i int, among uint64, by level) uint64 {
	in := uint64(1) << i
	c := &s.gpus[i]
	if by == zone && c.Zone <= 0 || by == numa && c.NUMA < 0 {
		return in
	}
	for rest := among; rest != 0; rest &= rest - 1 {
		j := bits.TrailingZeros64(rest)
		if other := &s.gpus[j]; by == zone && other.Zone == c.Zone || by == numa && other.NUMA == c.NUMA {
			in |= 1 << j
		}
	}
	return in
}

// smallest returns the smallest group of a set that has n GPUs; 0 if none has.
func (s *search) smallest(among uint64, n int, by level) uint64 {
	var best uint64
	for rest := among; rest != 0; {
		in := s.group(bits.TrailingZeros64(rest), rest, by)
		rest &^= in
		size := bits.OnesCount64(in)
		if size < n {
			continue
		}
		if had := bits.OnesCount64(best); best == 0 || size < had || size == had && s.cheaper(in, best, n) {
			best = in
		}
	}
	return best
}

// largest returns the zone of a set with the most GPUs.
func (s *search) largest(among uint64) uint64 {
	var best uint64
	for rest := among; rest != 0; {
		in := s.group(bits.TrailingZeros64(rest), rest, zone)
		rest &^= in
		size, had := bits.OnesCount64(in), bits.OnesCount64(best)
		if size > had || size == had && s.cheaper(in, best, size) {
			best = in
		}
	}
	return best
}

// cheapest returns the n GPUs of a set that cost least, the first of equal ones.
// Costs are compared number by number, so these have the least sum too.
func (s *search) cheapest(among uint64, n int) uint64 {
	var chosen uint64
	for range n {
		best := -1
		for rest := among &^ chosen; rest != 0; rest &= rest - 1 {
			i := bits.TrailingZeros64(rest)
			if best < 0 || s.costs[i].compare(&s.costs[best]) < 0 {
				best = i
			}
		}
		chosen |= 1 << best
	}
	return chosen
}

// cheaper reports whether n GPUs of the group a cost less than n of b.
func (s *search) cheaper(a, b uint64, n int) bool {
	x, y := s.sum(s.cheapest(a, n)), s.sum(s.cheapest(b, n))
	return x.compare(&y) < 0
}

func (s *search) sum(of uint64) (sum cost) {
	for rest := of; rest != 0; rest &= rest - 1 {
		for k, v := range s.costs[bits.TrailingZeros64(rest)] {
			sum[k] += v
		}
	}
	return sum
}

// cost orders GPUs for one request, the first number before the second, and so
// on; see [Place] for what they are.
type cost [4]int64

func (a *cost) compare(b *cost) int { return slices.Compare(a[:], b[:]) }

// loss returns the cost with binpack, in percent times MiB.
func (c *GPU) loss(r *Request) cost {
	v, m := int64(Whole-c.VCore), c.Room()-c.UsedMiB
	after := (v - int64(r.VCore)) * (m - c.needs(r))
	idle := int64(0)
	if c.Consumers == 0 {
		idle = 1
	}
	return cost{idle, v*m - after, after}
}

// load returns the cost with spread, in millionths.
func (c *GPU) load(r *Request) cost {
	const million = 1_000_000
	compute := int64(c.VCore+r.VCore) * (million / Whole)
	memory := int64(million)
	if c.MemoryMiB > 0 {
		memory = (c.UsedMiB + c.needs(r)) * million / c.Room()
	}
	return cost{max(compute, memory), min(compute, memory), int64(c.Consumers)}
}
