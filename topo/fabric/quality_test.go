package fabric_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// misplaced are the nodes that are not with the most of their group, or that
// are with those of another one.
func misplaced(f *fabrics.Fabric, got map[string]string, unknown map[string]bool) []string {
	names := make([]map[string]int, len(f.Plan.Sizes)) // By group: which names, how often.
	for i := range names {
		names[i] = map[string]int{}
	}
	for _, n := range f.Nodes {
		if !unknown[n.Name] && n.Group != fabrics.NoGroup {
			names[n.Group][got[n.Name]]++
		}
	}
	best, owners := make([]string, len(names)), map[string]int{}
	for group, counts := range names {
		most := 0
		for name, n := range counts {
			if n > most || n == most && name < best[group] {
				best[group], most = name, n
			}
		}
		owners[best[group]]++
	}
	var out []string
	for _, n := range f.Nodes {
		if !unknown[n.Name] && n.Group != fabrics.NoGroup && (got[n.Name] == "" || got[n.Name] != best[n.Group] || owners[got[n.Name]] > 1) {
			out = append(out, fmt.Sprintf("%s of group %d (%d nodes) is in %q, the group in %q, shared by %d",
				n.Name, n.Group, f.Plan.Sizes[n.Group], got[n.Name], best[n.Group], owners[got[n.Name]]))
		}
	}
	return out
}

// named maps findings to what the generator knows.
func named(s *fabric.Snapshot) []fabrics.Wrong {
	var out []fabrics.Wrong
	for _, f := range s.Findings() {
		if f.Kind != fabric.Dead && f.Kind != fabric.Miscabled {
			continue
		}
		w := fabrics.Wrong{Dead: f.Kind == fabric.Dead, Node: f.Node, Rail: f.Rail, Plane: f.Plane}
		w.Expected, w.Found = f.Expected.ID, f.Found.ID
		out = append(out, w)
	}
	return out
}

// undecidable are the nodes whose live cables match their group no better than
// another one: it cannot be known.
func undecidable(f *fabrics.Fabric) map[string]bool {
	leaves := railOf(f)
	out := map[string]bool{}
	for _, n := range f.Nodes {
		votes := map[int]int{}
		for _, r := range n.Spec.Rails {
			if r.Role != "fabric" || r.Switch == nil {
				continue
			}
			p := leaves[r.Switch.ID]
			votes[p.group] += 1000
			if !f.Plan.Rack && p.rail == r.Rail && p.plane == r.Plane {
				votes[p.group]++
			}
		}
		for group, v := range votes {
			if group != n.Group && v >= votes[n.Group] {
				out[n.Name] = true
			}
		}
		if votes[n.Group] == 0 {
			out[n.Name] = true
		}
	}
	return out
}

type rail struct {
	group       int
	rail, plane int32
}

// railOf is what every leaf is for.
func railOf(f *fabrics.Fabric) map[string]rail {
	out := map[string]rail{}
	for group := range f.Plan.Sizes {
		for r := range f.Plan.Rails {
			for plane := range max(f.Plan.Planes, 1) {
				out[f.Leaf(group, r, plane).ID] = rail{group, int32(r), int32(plane)}
			}
		}
	}
	return out
}

// quarreling are the rails of a group of which half of the ports or more are
// broken, strangers on their leaf counted in: there is no majority that shows what
// is right.
func quarreling(f *fabrics.Fabric, wrongs []fabrics.Wrong) map[rail]bool {
	leaves, broken := railOf(f), map[rail]int{}
	for _, w := range wrongs {
		broken[rail{f.Find(w.Node).Group, w.Rail, w.Plane}]++
		if w.Found != "" {
			broken[leaves[w.Found]]++
		}
	}
	out := map[rail]bool{}
	for r, n := range broken {
		out[r] = 2*n >= f.Plan.Sizes[r.group] && !f.Plan.Rack
	}
	return out
}

// With 5 % of all ports mis-cabled, dead or swapped, every node is in its
// group, every such port is named with the leaf it should be on, and nothing
// else is.
func TestQuality(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		plan fabrics.Plan
		// small means that there are groups too small to know which is wrong.
		small bool
	}{
		{"1000 nodes, 8 rails, 32 to a group", fabrics.Plan{Sizes: fabrics.Even(1000, 32), Rails: 8}, false},
		{"1000 nodes, 8 rails, 16 to a group", fabrics.Plan{Sizes: fabrics.Even(1000, 16), Rails: 8}, false},
		{"1000 nodes, 8 rails of 2 planes", fabrics.Plan{Sizes: fabrics.Even(1000, 20), Rails: 8, Planes: 2}, false},
		{"1000 nodes, 4 rails and storage", fabrics.Plan{Sizes: fabrics.Even(1000, 20), Rails: 4, Storage: 2}, false},
		{"2000 nodes in groups of 1 to 11", fabrics.Plan{Sizes: slices.Repeat(fabrics.Irregular(), 31), Rails: 8}, true},
		{"1000 nodes, all 8 HCAs on one leaf", fabrics.Plan{Sizes: fabrics.Even(1000, 8), Rails: 8, Rack: true}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			hopeless, left, total := 0, 0, 0
			for seed := range 8 {
				f := fabrics.New(tt.plan)
				f.Damage(rand.New(rand.NewPCG(uint64(seed), 1)), 0.05)
				s := mapOf(fabric.ModeLeaf, f).Snapshot(start)
				unknown := undecidable(f)
				hopeless += len(unknown)
				if bad := misplaced(f, groups(s), unknown); bad != nil {
					t.Errorf("seed %d: %d nodes: %s", seed, len(bad), bad[0])
				}
				wrongs := f.Wrongs()
				quarrel := quarreling(f, wrongs)
				unsure := func(w fabrics.Wrong) bool {
					return unknown[w.Node] || tt.small && quarrel[rail{f.Find(w.Node).Group, w.Rail, w.Plane}]
				}
				sure := len(wrongs)
				want, got := slices.DeleteFunc(wrongs, unsure), slices.DeleteFunc(named(s), unsure)
				left += sure - len(want)
				total += sure
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("seed %d: ports (-broken +named):\n%s", seed, diff)
				}
			}
			t.Logf("left out: %d nodes with no more cables to their group than to another, %d of %d broken ports on rails "+
				"of which half is broken", hopeless, left, total)
		})
	}
}
