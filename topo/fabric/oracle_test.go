package fabric_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/topo/fabric"
)

// definition is the package comment's four votes, written down as they stand
// there and without any thought of speed.
type definition struct {
	nodes  map[string][]cable
	leaves map[string]bool
	// noGPUs are the nodes without GPUs.
	noGPUs map[string]bool
}

// counts reports whether a node's cables to a leaf count in votes 1 and 3.
func (d *definition) counts(node, leaf string) bool {
	others := 0
	for other := range d.nodes {
		if !d.noGPUs[other] {
			others += d.cables(other, leaf)
		}
	}
	return !d.noGPUs[node] || others < 3
}

func (d *definition) cables(node, leaf string) int {
	n := 0
	for _, c := range d.nodes[node] {
		if c.leaf == leaf {
			n++
		}
	}
	return n
}

func (d *definition) siblings(a, b string) bool {
	type class struct{ a, b, both int }
	all, classes := class{}, map[int]class{} // By how many cables a node has.
	for node, cables := range d.nodes {
		x, y := d.cables(node, a), d.cables(node, b)
		if !d.counts(node, a) {
			x = 0
		}
		if !d.counts(node, b) {
			y = 0
		}
		c := classes[len(cables)]
		all = class{all.a + x, all.b + y, all.both + min(x, y)}
		classes[len(cables)] = class{c.a + x, c.b + y, c.both + min(x, y)}
	}
	most, alike := max(all.a, all.b), class{}
	for n, c := range classes {
		if n > 1 && c.a < 4*c.b && c.b < 4*c.a {
			alike = class{alike.a + c.a, alike.b + c.b, alike.both + c.both}
		}
	}
	return 2*all.both > most || alike.both >= 3 && 2*alike.both > max(alike.a, alike.b) && 8*alike.both >= most
}

func (d *definition) anchor(leaf string) string {
	least := leaf
	for other := range d.leaves {
		if other < least && d.siblings(leaf, other) {
			least = other
		}
	}
	return least
}

// usual reports whether at least half as many of a leaf's cables come from a rail
// as from any other.
func (d *definition) usual(leaf string, rail int32) bool {
	rails, most := map[int32]int{}, 0
	for _, cables := range d.nodes {
		for _, c := range cables {
			if c.leaf == leaf {
				rails[c.rail]++
				most = max(most, rails[c.rail])
			}
		}
	}
	return 2*rails[rail] >= most
}

// least is the least value with most of the votes, or at least three quarters as many.
func least(votes map[string]int) string {
	out := most(votes)
	n := votes[out]
	for value := range votes {
		if 4*votes[value] >= 3*n && value < out {
			out = value
		}
	}
	return out
}

// isBetween reports whether a value has more than half of the votes of the first.
func isBetween(votes map[string]int) bool {
	best := most(votes)
	for value, n := range votes {
		if value != best && 2*n > votes[best] {
			return true
		}
	}
	return false
}

func most(votes map[string]int) string {
	best := ""
	for value, n := range votes {
		if best == "" || n > votes[best] || n == votes[best] && value < best {
			best = value
		}
	}
	return best
}

// byFill decides a tie for the group with the fewest cables on the node's leaves.
func (d *definition) byFill(node string, homes map[string]string, votes map[string]int) {
	fill, n, least := map[string]int{}, votes[most(votes)], -1
	for _, c := range d.nodes[node] {
		leading := 0
		for other := range d.nodes {
			if d.counts(other, c.leaf) {
				leading += d.cables(other, c.leaf)
			}
		}
		fill[homes[c.leaf]] += leading
	}
	for value := range votes {
		if votes[value] == n && (least < 0 || fill[value] < least) {
			least = fill[value]
		}
	}
	for value := range votes {
		if votes[value] == n && fill[value] == least {
			votes[value]++
		}
	}
}

// groups is the key of every node's group.
func (d *definition) groups() map[string]string {
	anchors, homes, between := map[string]string{}, map[string]string{}, map[string]bool{}
	for leaf := range d.leaves {
		anchors[leaf] = d.anchor(leaf)
	}
	for leaf := range d.leaves {
		votes := map[string]int{}
		for node, cables := range d.nodes {
			vote := map[string]int{}
			for _, c := range cables {
				vote[anchors[c.leaf]]++
			}
			if n := d.cables(node, leaf); n > 0 && d.counts(node, leaf) {
				votes[least(vote)] += n
			}
		}
		homes[leaf], between[leaf] = most(votes), isBetween(votes)
	}
	out := map[string]string{}
	for node, cables := range d.nodes {
		votes := map[string]int{}
		all := !slices.ContainsFunc(cables, func(c cable) bool { return !between[c.leaf] })
		for _, c := range cables {
			if all || !between[c.leaf] {
				votes[homes[c.leaf]] += 1000 // The second count decides between equals only.
			}
		}
		for _, c := range cables {
			if votes[homes[c.leaf]] > 0 && d.usual(c.leaf, c.rail) {
				votes[homes[c.leaf]]++
			}
		}
		for value, n := range votes {
			if n == votes[most(votes)] && value != most(votes) {
				d.byFill(node, homes, votes)
				break
			}
		}
		out[node] = most(votes)
	}
	return out
}

func TestDefinition(t *testing.T) {
	t.Parallel()
	for seed := range 400 {
		rng := rand.New(rand.NewPCG(uint64(seed), 5))
		d := &definition{nodes: map[string][]cable{}, leaves: map[string]bool{}, noGPUs: map[string]bool{}}
		m := newMap(fabric.Preset(fabric.ModeLeaf, 0)...)
		rails, leaves, chaos := 1+rng.IntN(5), 2+rng.IntN(12), rng.Float64()
		for i := range 1 + rng.IntN(20) {
			name := fmt.Sprintf("n%02d", i)
			su := rng.IntN(4)
			for rail := range 1 + rng.IntN(rails) { // Not all have all rails.
				leaf := (su*rails + rail) % leaves
				if rng.Float64() < chaos {
					leaf = rng.IntN(leaves)
				}
				c := cable{rail: int32(rail), leaf: fmt.Sprintf("%02x", leaf)}
				d.nodes[name] = append(d.nodes[name], c)
				d.leaves[c.leaf] = true
			}
			spec := report(d.nodes[name]...)
			if d.noGPUs[name] = rng.IntN(3) == 0; d.noGPUs[name] {
				spec.Accelerators = nil
			}
			m.Put(node(name, spec))
		}
		got := map[string]string{}
		for holders, e := range m.Snapshot(start).All() {
			if e.Kind == "node" {
				got[e.Name] = holders[0].Key
			}
		}
		if diff := cmp.Diff(d.groups(), got); diff != "" {
			t.Fatalf("seed %d (-definition +map):\n%s", seed, diff)
		}
	}
}
