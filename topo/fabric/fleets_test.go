package fabric_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// fleet is a shape of fleet: its plan, of groups of at most per nodes.
type fleet struct {
	name string
	per  int
	plan fabrics.Plan
	// labeled fleets were healthy before, and the nodes carry the names of their groups.
	labeled bool
}

func fleets() []fleet {
	return []fleet{
		{name: "one rail per leaf", per: 32, plan: fabrics.Plan{Rails: 8}},
		{name: "two rails per leaf", per: 32, plan: fabrics.Plan{Rails: 8, PerLeaf: 2}},
		{name: "two rails per leaf, 4 HCAs (GB200)", per: 18, plan: fabrics.Plan{Rails: 4, PerLeaf: 2}},
		{name: "four rails per leaf", per: 16, plan: fabrics.Plan{Rails: 8, PerLeaf: 4}},
		{name: "dual ToR, two pairs", per: 16, plan: fabrics.Plan{Rails: 8, Planes: 2, PerLeaf: 4}},
		{name: "four planes", per: 32, plan: fabrics.Plan{Rails: 8, Planes: 4}},
		{name: "a director for all rails", per: 100, plan: fabrics.Plan{Rails: 8, PerLeaf: 8}},
		{name: "two directors, four rails each", per: 128, plan: fabrics.Plan{Rails: 8, PerLeaf: 4}},
		{name: "4 HCAs on half of the nodes, 8 on the others", per: 32, plan: fabrics.Plan{Rails: 8, Half: 1, Of: 2}},
		{name: "4 HCAs on three of four nodes", per: 32, plan: fabrics.Plan{Rails: 8, Half: 3, Of: 4}},
		{name: "4 HCAs on one of four nodes, two rails per leaf", per: 32, plan: fabrics.Plan{Rails: 8, PerLeaf: 2, Half: 1, Of: 4}},
		{name: "three of four nodes without GPUs, with one HCA", per: 64, plan: fabrics.Plan{Rails: 8, CPU: 3, Of: 4}},
		{name: "the same with two, one on a leaf of their own", per: 64, plan: fabrics.Plan{Rails: 8, CPU: 3, Of: 4, Aside: true}},
		{name: "every third node odd", per: 32, plan: fabrics.Plan{Rails: 8, Odd: 3}},
		{name: "every third node odd, two rails per leaf, groups of 8", per: 8, plan: fabrics.Plan{Rails: 8, PerLeaf: 2, Odd: 3}},
		{name: "four rails on leaves of twice the size", per: 32, plan: fabrics.Plan{Rails: 8, Wide: 4}},
		{name: "even rails on other boundaries, 8 of 32 nodes", per: 32, plan: fabrics.Plan{Rails: 8, Shift: 8}},
		{name: "the second group without an eighth HCA", per: 13, plan: fabrics.Plan{Rails: 8, Short: 2}},
		{name: "2 HCAs", per: 16, plan: fabrics.Plan{Rails: 2}, labeled: true},
	}
}

// fault damages a fleet.
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
		{"dead leaf", (*fabrics.Fabric).DeadLeaf},
		{"1 wrong cable", (*fabrics.Fabric).WrongCable},
		{"5 % wrong", func(f *fabrics.Fabric, rng *rand.Rand) { f.Damage(rng, 0.05) }},
	}
}

// score counts false findings, missed ones, nodes in a wrong group and faults that no evidence shows.
type score struct{ falsely, missed, moved, open int }

// evaluate compares what the tree shows of a fleet with what the generator knows. In a small cluster a fault is found
// where its port is named, wherever that belongs.
func evaluate(t *testing.T, f *fabrics.Fabric, labels map[string]string, small bool) (s score, example string) {
	t.Helper()
	m := newMap(fabric.Preset(fabric.ModeLeaf, 0)...)
	for _, n := range inputs(f) {
		if name := labels[n.Name]; name != "" {
			n.Names = []string{name}
		}
		m.Put(n)
	}
	snapshot := m.Snapshot(start)
	hopeless := hopeless(f, len(labels) > 0)
	truth, found := map[fabrics.Wrong]bool{}, map[fabrics.Wrong]bool{}
	for _, w := range f.Wrongs() {
		sure := !w.Unsure && !hopeless[w.Node]
		w.Unsure = false
		truth[w] = sure
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
		unknown := w
		unknown.Expected = ""
		if _, ok := truth[unknown]; ok { // Nothing shows where exactly.
			w = unknown
		}
		for known := range truth {
			where := known.Expected
			if known.Expected = ""; small && known == unknown {
				w.Expected = where
			}
		}
		found[w] = true
		switch _, ok := truth[w]; {
		case ok || hopeless[w.Node]:
		case small && isTaken(f, w.Found):
			s.open++
		default:
			note(&s.falsely, "false: %+v", g)
		}
	}
	for w, sure := range truth {
		switch {
		case !sure || found[w]:
		case small && isOpen(f, w):
			s.open++
		default:
			note(&s.missed, "missed: %+v", w)
		}
	}
	for _, m := range misplaced(f, groups(snapshot), hopeless) {
		note(&s.moved, "%s", m)
	}
	return s, example
}

// isOpen reports whether no evidence shows a fault of a small cluster:
//   - of a node without GPUs: it is expected to have no cable;
//   - of a node with a product of its own and at most half of the cables as others have: its kind may be wired so;
//   - of one of two nodes of a kind: the other one's cable may as well be the wrong one;
//   - a lost last HCA, if fewer than three nodes of the kind have it: two healthy models report the same.
func isOpen(f *fabrics.Fabric, w fabrics.Wrong) bool {
	n, right, alike := f.Find(w.Node), 0, 0
	for _, c := range n.Cables {
		right += len(ends(n, c))
	}
	for i := range f.Nodes {
		o := &f.Nodes[i]
		if o != n && o.Group == n.Group && len(o.Cables) == len(n.Cables) && len(o.Spec.Accelerators) > 0 {
			alike += len(ends(o, fabrics.Cable{Rail: w.Rail, Plane: w.Plane, Leaf: w.Expected}))
		}
	}
	isAlone := n.Odd && 2*right <= len(n.Cables) || alike < 2 || w.Missing && alike < 3
	return len(n.Spec.Accelerators) == 0 || !w.Dead && isAlone
}

// ends returns the node's port that is as a cable says, or none.
func ends(n *fabrics.Node, c fabrics.Cable) []v1alpha1.Rail {
	return slices.DeleteFunc(slices.Clone(n.Spec.Rails), func(r v1alpha1.Rail) bool {
		return r.Rail != c.Rail || r.Plane != c.Plane || r.Switch == nil || r.Switch.ID != c.Leaf
	})
}

// isTaken reports whether more of a leaf's cables are wrong than right: nothing shows which are.
func isTaken(f *fabrics.Fabric, leaf string) bool {
	wrong, right := 0, 0
	for _, w := range f.Wrongs() {
		if w.Found == leaf {
			wrong++
		}
	}
	for i := range f.Nodes {
		for _, c := range f.Nodes[i].Cables {
			if c.Leaf == leaf {
				right += len(ends(&f.Nodes[i], c))
			}
		}
	}
	return wrong > right
}

// hopeless returns the nodes that have at least as many cables to another group as to their own, or from rails that are
// on these leaves by plan, and the nodes that may be anywhere.
func hopeless(f *fabrics.Fabric, labeled bool) map[string]bool {
	owners, usual := map[string]map[int]bool{}, map[fabrics.Cable]bool{}
	for _, n := range f.Nodes {
		if n.Group == fabrics.NoGroup {
			continue
		}
		for _, c := range n.Cables {
			if owners[c.Leaf] == nil {
				owners[c.Leaf] = map[int]bool{}
			}
			owners[c.Leaf][n.Group], usual[c] = true, true
		}
	}
	out := map[string]bool{}
	for _, n := range f.Nodes {
		votes := map[int]int{}
		for _, r := range n.Spec.Rails {
			if r.Switch != nil && r.Role == "fabric" {
				weight := 100
				if len(n.Cables) < 4 && usual[fabrics.Cable{Rail: r.Rail, Plane: r.Plane, Leaf: r.Switch.ID}] {
					weight++
				}
				for group := range owners[r.Switch.ID] {
					votes[group] += weight
				}
				on := func(p v1alpha1.Rail) bool { return p.Switch != nil && p.Switch.ID == r.Switch.ID }
				for _, o := range f.Nodes { // A node alone in its group may be of those whose cables are on its leaves.
					if f.Plan.Sizes[max(n.Group, 0)] == 1 && o.Group != n.Group && slices.ContainsFunc(o.Spec.Rails, on) {
						votes[o.Group] += weight
					}
				}
			}
		}
		if votes[n.Group] == 0 {
			out[n.Name] = true
		}
		for group, v := range votes {
			if group != n.Group && (v > votes[n.Group] || v == votes[n.Group] && !labeled) {
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
		if !unknown[n.Name] && n.Group != fabrics.NoGroup && (got[n.Name] == "" || got[n.Name] != best[n.Group] || owners[got[n.Name]] > 1 && f.Plan.Wide == 0) {
			out = append(out, fmt.Sprintf("%s of group %d (%d nodes) is in %q, the group in %q, shared by %d",
				n.Name, n.Group, f.Plan.Sizes[n.Group], got[n.Name], best[n.Group], owners[got[n.Name]]))
		}
	}
	return out
}

// More shapes, with one wrong cable and with 5 % of all ports wrong.
func TestMoreFleets(t *testing.T) {
	t.Parallel()
	faults := faults()
	for _, fl := range []fleet{
		{name: "16 to a group", per: 16, plan: fabrics.Plan{Rails: 8}},
		{name: "two planes", per: 20, plan: fabrics.Plan{Rails: 8, Planes: 2}},
		{name: "4 rails and storage", per: 20, plan: fabrics.Plan{Rails: 4, Storage: 2}},
		{name: "all 8 HCAs on one leaf", per: 8, plan: fabrics.Plan{Rails: 8, Rack: true}},
		{name: "2 HCAs, without labels", per: 16, plan: fabrics.Plan{Rails: 2}},
	} {
		t.Run(fl.name, func(t *testing.T) {
			t.Parallel()
			for _, fa := range faults[len(faults)-2:] {
				fl.score(t, fa)
			}
		})
	}
}

// Groups of one to eleven nodes are too small to tell which cable is wrong, not where a node belongs.
func TestSmallGroups(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		f := fabrics.New(fabrics.Plan{Sizes: slices.Repeat(fabrics.Irregular(), 31), Rails: 8})
		f.Damage(rand.New(rand.NewPCG(seed, 1)), 0.05)
		if s, example := evaluate(t, f, nil, true); s.moved > 0 {
			t.Errorf("seed %d: %d nodes moved: %s", seed, s.moved, example)
		}
	}
}

// In clusters of five, eight and twenty nodes of several kinds no right cable is reported, no node moves, and no fault is
// missed but those that nothing shows.
func TestSmallClustersOfSeveralKinds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		plan fabrics.Plan
		open int
	}{
		{"all alike", fabrics.Plan{Rails: 8}, 2},
		{"half with 4 HCAs", fabrics.Plan{Rails: 8, Half: 1, Of: 2}, 22},
		{"one in four without GPUs", fabrics.Plan{Rails: 8, CPU: 1, Of: 4}, 2},
		{"one in four with 4 HCAs, one without GPUs", fabrics.Plan{Rails: 8, Half: 1, CPU: 1, Of: 4}, 29},
		{"every second odd", fabrics.Plan{Rails: 8, Odd: 2}, 2},
		{"every third odd, one in four with 4 HCAs", fabrics.Plan{Rails: 8, Odd: 3, Half: 1, Of: 4}, 16},
		{"every third odd, two rails per leaf", fabrics.Plan{Rails: 8, Odd: 3, PerLeaf: 2}, 0},
		{"every third odd, 2 HCAs", fabrics.Plan{Rails: 2, Odd: 3}, 15},
		{"2 HCAs", fabrics.Plan{Rails: 2}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			open := 0
			for _, sizes := range [][]int{{5}, {4, 1}, {8}, {4, 4}, {5, 5, 5, 5}} {
				tt.plan.Sizes = sizes
				for _, fa := range faults() {
					for seed := range uint64(5) {
						f := fabrics.New(tt.plan)
						fa.apply(f, rand.New(rand.NewPCG(seed, 3)))
						s, example := evaluate(t, f, nil, true)
						if s.falsely+s.missed+s.moved > 0 {
							t.Errorf("%v, %s, seed %d: %+v: %s", sizes, fa.name, seed, s, example)
						}
						open += s.open
					}
				}
			}
			if open != tt.open {
				t.Errorf("nothing shows %d faults, want %d", open, tt.open)
			}
		})
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
			var labels map[string]string
			if fl.labeled {
				labels = groups(mapOf(fabric.ModeLeaf, f).Snapshot(start))
			}
			fa.apply(f, rand.New(rand.NewPCG(uint64(seed), uint64(size.nodes))))
			s, example := evaluate(t, f, labels, false)
			if s != (score{}) {
				t.Errorf("%s, %d nodes, seed %d: %+v: %s", fa.name, size.nodes, seed, s, example)
			}
		}
	}
}

// Whichever nodes of a healthy fleet there are, and whatever else: nothing is wrong.
func TestPartsOfFleets(t *testing.T) {
	t.Parallel()
	plans := fleets()
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 6))
		m := newMap(fabric.Preset(fabric.ModeLeaf, 0)...)
		plan := plans[rng.IntN(len(plans))].plan
		per := []int{1, 2, 4, 5, 8, 16, 32}[rng.IntN(7)]
		plan.Sizes = fabrics.Even(1+rng.IntN(6*per), per)
		plan.Shift = min(plan.Shift, per/4)
		if rng.IntN(3) == 0 {
			plan.Odd = 3 + rng.IntN(5)
		}
		if plan.Rails > 2 && rng.IntN(4) == 0 {
			plan.Half, plan.CPU, plan.Of = rng.IntN(3), rng.IntN(3), 4
		}
		if plan.Rails == 8 && rng.IntN(4) == 0 {
			plan.Short = 1 + rng.IntN(3)
		}
		f := fabrics.New(plan)
		for range rng.IntN(3) {
			f.AddCPU(rng)
			f.AddStorage(rng)
		}
		share := rng.Float64()
		for _, n := range inputs(f) {
			if rng.Float64() < share {
				m.Put(n)
			}
		}
		if list := m.Snapshot(start).Findings(); len(list) > 0 {
			t.Errorf("seed %d, %+v: %d findings: %+v", seed, plan, len(list), list[0])
		}
	}
}

// A node that is odd in anything has its cables checked as the others have.
func TestOddNodes(t *testing.T) {
	t.Parallel()
	const wrong = 3
	for name, odd := range map[string]func(*v1alpha1.NodeTopologySpec){
		"as the others":   func(*v1alpha1.NodeTopologySpec) {},
		"7 GPUs":          func(s *v1alpha1.NodeTopologySpec) { s.Accelerators[0].Count = 7 },
		"no GPU":          func(s *v1alpha1.NodeTopologySpec) { s.Accelerators = nil },
		"another product": func(s *v1alpha1.NodeTopologySpec) { s.Accelerators[0].Product = "NVIDIA-H200" },
		"a ninth HCA": func(s *v1alpha1.NodeTopologySpec) {
			s.Rails = append(s.Rails, report(cable{rail: 8, leaf: s.Rails[7].Switch.ID}).Rails...)
		},
	} {
		for _, per := range []int{4, 32} {
			f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(4*per, per), Rails: 8})
			n := &f.Nodes[per+1]
			for i := range wrong {
				n.Spec.Rails[i].Switch = new(f.Leaf(2, i+3, 0))
			}
			odd(&n.Spec)
			if got := len(mapOf(fabric.ModeLeaf, f).Snapshot(start).Findings()); got != wrong {
				t.Errorf("%s, groups of %d: %d findings of %d", name, per, got, wrong)
			}
		}
	}
}

// Where a fleet is wired otherwise by plan, everywhere or in a whole group, nothing is wrong.
func TestPlans(t *testing.T) {
	t.Parallel()
	sizes := slices.Concat(fabrics.Even(128, 32), []int{32})
	for _, tt := range []struct {
		name string
		plan fabrics.Plan
	}{
		{"rail 0 one node later, leaves of 4", fabrics.Plan{Sizes: fabrics.Even(16, 4), Rails: 2, Shift: 1}},
		{"even rails 8 of 32 nodes later", fabrics.Plan{Sizes: fabrics.Even(512, 32), Rails: 8, Shift: 8}},
		{"3 of 16 nodes without an HCA", fabrics.Plan{Sizes: []int{13, 3}, Rails: 8, Short: 2}},
		{"31 of 159", fabrics.Plan{Sizes: slices.Concat(sizes[:4], []int{31}), Rails: 8, Short: 5}},
		{"32 of 160", fabrics.Plan{Sizes: sizes, Rails: 8, Short: 5}},
		{"5 of 133", fabrics.Plan{Sizes: slices.Concat(sizes[:4], []int{5}), Rails: 8, Short: 5}},
	} {
		if list := mapOf(fabric.ModeLeaf, fabrics.New(tt.plan)).Snapshot(start).Findings(); len(list) > 0 {
			t.Errorf("%s: %d findings: %+v", tt.name, len(list), list[0])
		}
	}
	// A leaf that never had a link, where the other group's has.
	f := fabrics.New(fabrics.Plan{Sizes: []int{4, 4}, Rails: 8})
	f.DeadLeaf(nil)
	list := mapOf(fabric.ModeLeaf, f).Snapshot(start).Findings()
	if len(list) != 4 || list[0].Kind != fabric.Dead {
		t.Errorf("%d findings for four dead ports: %+v", len(list), list)
	}
}
