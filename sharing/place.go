package sharing

import (
	"cmp"
	"math/bits"

	"github.com/heddle-dev/heddle/api/config"
)

// MaxCards is how many cards a node can have for [Place]; more are never
// chosen.
const MaxCards = 64

// cost orders cards for one request, lexicographically; see [Place].
type cost [4]int64

func (a cost) compare(b cost) int {
	return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]), cmp.Compare(a[2], b[2]), cmp.Compare(a[3], b[3]))
}

// Place chooses r.Cards different cards that take the request, and gives their
// places in cards, sorted, in the storage of out. It is false if they are too
// few: [Explain] says why.
func Place(cards []Card, r *Request, how config.Placement, out []int) ([]int, bool) {
	var costs [MaxCards]cost
	var able uint64
	out = out[:0]
	cards = cards[:min(len(cards), MaxCards)]
	for i := range cards {
		if cards[i].Refuses(r).None() {
			able |= 1 << i
			costs[i] = cards[i].cost(r, how)
		}
	}
	if r.Cards < 1 || bits.OnesCount64(able) < r.Cards {
		return out, false
	}
	for chosen := cheapest(&costs, able, r.Cards); chosen != 0; chosen &= chosen - 1 {
		out = append(out, bits.TrailingZeros64(chosen))
	}
	return out, true
}

// cost is what taking the request costs the card.
func (c *Card) cost(r *Request, how config.Placement) cost {
	v, m := int64(Whole-c.VCore), c.MemoryMiB-c.UsedMiB
	dv, dm := int64(r.VCore), c.needs(r)
	if how == config.PlacementSpread {
		vcore := (int64(c.VCore) + dv) * 10_000
		memory := (c.UsedMiB + dm) * 1_000_000 / max(1, c.MemoryMiB)
		return cost{max(vcore, memory), min(vcore, memory), int64(c.Tenants)}
	}
	idle := int64(0)
	if c.Tenants == 0 {
		idle = 1
	}
	return cost{idle, v*m - (v-dv)*(m-dm), (v - dv) * (m - dm)}
}

// cheapest is the n cards of a set with the least cost, the first of equal
// ones.
func cheapest(costs *[MaxCards]cost, among uint64, n int) uint64 {
	var chosen uint64
	for range n {
		best := -1
		for rest := among &^ chosen; rest != 0; rest &= rest - 1 {
			i := bits.TrailingZeros64(rest)
			if best < 0 || costs[i].compare(costs[best]) < 0 {
				best = i
			}
		}
		if best < 0 {
			break
		}
		chosen |= 1 << best
	}
	return chosen
}
