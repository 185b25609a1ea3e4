package fabric_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// fleet is a shape of fleet: its plan, of groups of at most per nodes.
type fleet struct {
	name string
	per  int
	plan fabrics.Plan
}

func fleets() []fleet {
	return []fleet{
		{"one rail per leaf", 32, fabrics.Plan{Rails: 8}},
		{"two rails per leaf", 32, fabrics.Plan{Rails: 8, PerLeaf: 2}},
		{"two rails per leaf, 4 HCAs (GB200)", 18, fabrics.Plan{Rails: 4, PerLeaf: 2}},
		{"four rails per leaf", 16, fabrics.Plan{Rails: 8, PerLeaf: 4}},
		{"dual ToR, two pairs", 16, fabrics.Plan{Rails: 8, Planes: 2, PerLeaf: 4}},
		{"four planes", 32, fabrics.Plan{Rails: 8, Planes: 4}},
		{"a director for all rails", 100, fabrics.Plan{Rails: 8, PerLeaf: 8}},
		{"two directors, four rails each", 128, fabrics.Plan{Rails: 8, PerLeaf: 4}},
		{"4 HCAs on half of the nodes, 8 on the others", 32, fabrics.Plan{Rails: 8, Half: 1, Of: 2}},
		{"4 HCAs on three of four nodes", 32, fabrics.Plan{Rails: 8, Half: 3, Of: 4}},
		{"4 HCAs on one of four nodes, two rails per leaf", 32, fabrics.Plan{Rails: 8, PerLeaf: 2, Half: 1, Of: 4}},
		{"three of four nodes without GPUs, with one HCA", 64, fabrics.Plan{Rails: 8, CPU: 3, Of: 4}},
		{"the same with two, one on a leaf of their own", 64, fabrics.Plan{Rails: 8, CPU: 3, Of: 4, Aside: true}},
	}
}

// fault is what is done to a fleet.
type fault struct {
	name  string
	apply func(f *fabrics.Fabric, rng *rand.Rand)
}

func faults() []fault {
	return []fault{
		{"none", func(*fabrics.Fabric, *rand.Rand) {}},
		{"one CPU node", (*fabrics.Fabric).AddCPU},
		{"one storage node", (*fabrics.Fabric).AddStorage},
		{"dead port", (*fabrics.Fabric).DeadPort},
		{"missing HCA", (*fabrics.Fabric).MissingHCA},
		{"1 wrong cable", (*fabrics.Fabric).WrongCable},
		{"5 % wrong", func(f *fabrics.Fabric, rng *rand.Rand) { f.Damage(rng, 0.05) }},
	}
}

// score counts false findings, missed ones, and nodes in a wrong group.
type score struct{ falsely, missed, moved int }

// evaluate compares what the tree shows of a fleet with what the generator knows.
func evaluate(t *testing.T, f *fabrics.Fabric) (s score, example string) {
	t.Helper()
	snapshot := mapOf(fabric.ModeLeaf, f).Snapshot(start)
	hopeless := hopeless(f)
	truth, found := map[fabrics.Wrong]bool{}, map[fabrics.Wrong]bool{}
	for _, w := range f.Wrongs() {
		truth[w] = !hopeless[w.Node]
	}
	note := func(n *int, format string, args ...any) {
		*n++
		if example == "" {
			example = fmt.Sprintf(format, args...)
		}
	}
	for _, g := range snapshot.Findings() {
		w := fabrics.Wrong{
			Dead: g.Kind == fabric.Dead, Missing: g.Kind == fabric.Missing, Node: g.Node, Rail: g.Rail, Plane: g.Plane,
			Expected: g.Expected.ID, Found: g.Found.ID,
		}
		found[w] = true
		if _, ok := truth[w]; !ok && !hopeless[w.Node] {
			note(&s.falsely, "false: %+v", g)
		}
	}
	for w, sure := range truth {
		if sure && !found[w] {
			note(&s.missed, "missed: %+v", w)
		}
	}
	for _, m := range misplaced(f, groups(snapshot), hopeless) {
		note(&s.moved, "%s", m)
	}
	return s, example
}

// hopeless are the nodes of which no more cables lead to their group than to
// another one, and those that may be anywhere.
func hopeless(f *fabrics.Fabric) map[string]bool {
	owner := map[string]int{}
	for _, n := range f.Nodes {
		for _, c := range n.Cables {
			owner[c.Leaf] = n.Group
		}
	}
	out := map[string]bool{}
	for _, n := range f.Nodes {
		votes := map[int]int{}
		for _, r := range n.Spec.Rails {
			if r.Switch != nil && r.Role == "fabric" {
				votes[owner[r.Switch.ID]]++
			}
		}
		for group, v := range votes {
			if group != n.Group && v >= votes[n.Group] {
				out[n.Name] = true
			}
		}
		if n.Group == fabrics.NoGroup {
			delete(out, n.Name) // It has no findings, wherever it is.
		}
	}
	return out
}

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

// More shapes, with 5 % of all ports wrong.
func TestMoreFleets(t *testing.T) {
	t.Parallel()
	faults := faults()
	for _, fl := range []fleet{
		{"16 to a group", 16, fabrics.Plan{Rails: 8}},
		{"two planes", 20, fabrics.Plan{Rails: 8, Planes: 2}},
		{"4 rails and storage", 20, fabrics.Plan{Rails: 4, Storage: 2}},
		{"all 8 HCAs on one leaf", 8, fabrics.Plan{Rails: 8, Rack: true}},
	} {
		t.Run(fl.name, func(t *testing.T) {
			t.Parallel()
			fl.score(t, faults[len(faults)-1])
		})
	}
}

// Groups of one to eleven nodes are too small to tell which cable is wrong, not where a node belongs.
func TestSmallGroups(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		f := fabrics.New(fabrics.Plan{Sizes: slices.Repeat(fabrics.Irregular(), 31), Rails: 8})
		f.Damage(rand.New(rand.NewPCG(seed, 1)), 0.05)
		if s, example := evaluate(t, f); s.moved > 0 {
			t.Errorf("seed %d: %d nodes moved: %s", seed, s.moved, example)
		}
	}
}

// sizes are the sizes of fleets, with how many of each fault.
func sizes() []struct{ nodes, seeds int } {
	return []struct{ nodes, seeds int }{{16, 4}, {128, 2}, {1024, 1}}
}

// TestFleets finds every wrong cable and nothing else, in every shape of fleet.
func TestFleets(t *testing.T) {
	t.Parallel()
	for _, fl := range fleets() {
		t.Run(fl.name, func(t *testing.T) {
			t.Parallel()
			for _, fa := range faults() {
				fl.score(t, fa)
			}
		})
	}
}

// score fails if a fleet of any size with a fault has a wrong result.
func (fl *fleet) score(t *testing.T, fa fault) {
	t.Helper()
	for _, size := range sizes() {
		for seed := range size.seeds {
			plan := fl.plan
			plan.Sizes = fabrics.Even(size.nodes, fl.per)
			f := fabrics.New(plan)
			fa.apply(f, rand.New(rand.NewPCG(uint64(seed), uint64(size.nodes))))
			s, example := evaluate(t, f)
			if s.falsely+s.missed+s.moved > 0 {
				t.Errorf("%s, %d nodes, seed %d: %+v: %s", fa.name, size.nodes, seed, s, example)
			}
		}
	}
}
