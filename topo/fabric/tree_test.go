package fabric_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
)

func TestTree(t *testing.T) {
	t.Parallel()
	nvlink := func(spec *v1alpha1.NodeTopologySpec, domain string) *v1alpha1.NodeTopologySpec {
		spec.NVLinkDomain = domain
		return spec
	}
	ported := func(leafPorts ...string) *v1alpha1.NodeTopologySpec {
		var all []cable
		for i, p := range leafPorts {
			all = append(all, cable{rail: int32(i), leaf: "aa", port: p})
		}
		return report(all...)
	}
	for _, tt := range []struct {
		name  string
		mode  fabric.Mode
		nodes []fabric.Node
		want  string
	}{
		{"no nodes", fabric.ModeAuto, nil, ""},
		{"nodes in no group stand at the top", fabric.ModeAuto, []fabric.Node{node("b", nil), node("a", onto())}, "a b"},
		{
			"one rail: the node is where its cable is", fabric.ModeLeaf,
			[]fabric.Node{node("a", onto("1")), node("b", onto("2")), node("c", onto("1"))},
			"leaf-1(a c) leaf-2(b)",
		},
		{
			"a mis-cabled port merges nothing", fabric.ModeLeaf,
			[]fabric.Node{
				node("a", onto("11", "12", "13", "14")), node("b", onto("11", "12", "13", "14")),
				node("c", onto("11", "22", "13", "14")), node("d", onto("21", "22", "23", "24")),
				node("e", onto("21", "22", "23", "24")), node("f", onto("21", "22", "13", "24")),
			},
			"leaf-11(a b c:Degraded):Degraded leaf-21(d e f:Degraded):Degraded",
		},
		{
			"storage HCAs group nothing", fabric.ModeLeaf,
			[]fabric.Node{
				node("a", report(cable{leaf: "1"}, cable{leaf: "9", role: "storage"})),
				node("b", report(cable{leaf: "2"}, cable{leaf: "9", role: "storage"})),
				node("c", report(cable{leaf: "9", role: "storage"})),
			},
			"c leaf-1(a) leaf-2(b)",
		},
		{
			"a switch of low confidence groups nothing", fabric.ModeLeaf,
			[]fabric.Node{node("a", report(cable{leaf: "1", sure: 20})), node("b", report(cable{leaf: "1", sure: 80}))},
			"a leaf-1(b)",
		},
		{
			"the spellings of one switch are one switch", fabric.ModeLeaf,
			[]fabric.Node{
				node("a", onto("0x2c5eab0300c26480")), node("b", onto("2C5E:AB03:00C2:6480")), node("c", onto("2c5eab0300c26480")),
				node("d", onto("02:00:00:00:EE:00")), node("e", onto("02000000ee00")), node("f", onto("local vm")),
			},
			"leaf-02000000ee00(d e) leaf-2c5eab0300c26480(a b c) leaf-local-vm-a3752f40(f)",
		},
		{
			"racks that are across leaves are beside the tree, others in their leaf group", fabric.ModeAuto,
			[]fabric.Node{
				node("a", nvlink(onto("1", "2"), "X.1")), node("b", nvlink(onto("1", "2"), "X.1")), node("c", nvlink(onto("7", "8"), "X.1")),
				node("d", nvlink(onto("7", "8"), "X.2")), node("e", onto("7", "8")), node("f", nvlink(onto(), "X.3")),
			},
			"leaf-1(a b) leaf-7(c e nvlink-X.2(d)) nvlink-X.3(f)",
		},
		{
			"in mode nvlink, domains only", fabric.ModeNVLink,
			[]fabric.Node{node("a", nvlink(onto("1"), "X.1")), node("b", onto("1"))},
			"b nvlink-X.1(a)",
		},
		{
			"dragonflies by neighboring switch ports", fabric.ModeDragonfly,
			[]fabric.Node{
				node("a", ported("1")), node("b", ported("2")), node("c", ported("swp3")), node("d", ported("Ethernet1/4")), node("e", ported("7")),
			},
			"dragonfly-aa-0(a b) dragonfly-aa-1(c d) dragonfly-aa-3(e)",
		},
		{
			"as many switch ports as a node has rails on the leaf make a node", fabric.ModeDragonfly,
			[]fabric.Node{
				node("a", ported("1", "2")), node("b", ported("3", "4")), node("c", ported("5", "6")), node("d", ported("7", "8")),
			},
			"dragonfly-aa-0(a b) dragonfly-aa-1(c d)",
		},
		{
			"no more nodes than a dragonfly has are one", fabric.ModeDragonfly,
			[]fabric.Node{node("a", ported("1")), node("b", ported("40"))},
			"dragonfly-aa(a b)",
		},
		{
			"what is known beats what is measured", fabric.ModeDragonfly,
			[]fabric.Node{
				node("a", ported("1")), node("b", ported("2")), node("c", pathed("switchbox-1", "dragonfly-z")), node("d", pathed("y")),
				node("e", nvlink(ported("3"), "X.1")), node("f", nvlink(ported("4"), "X.1")),
			},
			"dragonfly-X.1(e f) dragonfly-aa-0(a b) dragonfly-y(d) dragonfly-z(c)",
		},
		{
			"switchboxes of dragonflies", fabric.ModeSwitchbox,
			[]fabric.Node{
				node("a", pathed("switchbox-1", "dragonfly-1")), node("b", pathed("1", "2")),
				node("c", pathed("switchbox-2")), node("d", pathed("dragonfly-9")), node("e", onto("1")),
			},
			"dragonfly-9(d) e switchbox-1(dragonfly-1(a) dragonfly-2(b)) switchbox-2(c)",
		},
		{
			"in mode auto a path stands for the leaves", fabric.ModeAuto,
			[]fabric.Node{
				node("a", &v1alpha1.NodeTopologySpec{Path: []string{"switchbox-1", "dragonfly-1"}, Rails: onto("1").Rails}),
				node("b", onto("1")),
			},
			"leaf-1(b) switchbox-1(dragonfly-1(a))",
		},
		{
			"a cycle of paths puts its author at the top", fabric.ModeSwitchbox,
			[]fabric.Node{node("a", pathed("switchbox-1", "dragonfly-1")), node("b", pathed("dragonfly-1", "switchbox-1"))},
			"b:Degraded switchbox-1(dragonfly-1(a))",
		},
		{
			"who contradicts the others about a group goes with it", fabric.ModeSwitchbox,
			[]fabric.Node{
				node("a", pathed("switchbox-1", "dragonfly-1")), node("b", pathed("switchbox-2", "dragonfly-1")),
				node("c", pathed("switchbox-1", "dragonfly-1")), node("d", pathed("switchbox-2", "dragonfly-2")),
			},
			"switchbox-1(dragonfly-1(a b:Degraded c):Degraded):Degraded switchbox-2(dragonfly-2(d))",
		},
		{
			"hostile names are no labels and no JSON", fabric.ModeSwitchbox,
			[]fabric.Node{node("a\"<\n", pathed(`"},{`, strings.Repeat("é", 40)))},
			"switchbox(dragonfly(a\"<\n))",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := newMap(fabric.Preset(tt.mode, 0)...)
			s := put(m, tt.nodes...)
			if diff := cmp.Diff(tt.want, outline(treeOf(s.Child))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			check(t, viewOf(t, s), treeOf(s.Child))
		})
	}
}

// sample is what topo-masters of this kind have always answered.
const sample = `[{"name":"switchbox-sample1","kind":"switchbox","child":[{"name":"dragonfly-sample1","kind":"dragonfly","child":[{"name":"node-sample1","kind":"node","status":"Ready"},{"name":"node-sample2","kind":"node","status":"Ready"}],"status":"Ready"},{"name":"dragonfly-sample2","kind":"dragonfly","child":[{"name":"node-sample3","kind":"node","status":"Ready"},{"name":"node-sample4","kind":"node","status":"Ready"}],"status":"Ready"}],"status":"Ready"}]
`

func TestSample(t *testing.T) {
	t.Parallel()
	m := newMap(fabric.Preset(fabric.ModeSwitchbox, 0)...)
	s := put(m,
		node("node-sample4", pathed("switchbox-sample1", "dragonfly-sample2")),
		node("node-sample1", pathed("switchbox-sample1", "dragonfly-sample1")),
		node("node-sample3", pathed("switchbox-sample1", "dragonfly-sample2")),
		node("node-sample2", pathed("switchbox-sample1", "dragonfly-sample1")),
	)
	if diff := cmp.Diff(sample, viewOf(t, s).Body); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, tt := range []struct{ kind, name, want string }{
		{"", "", "switchbox-sample1"},
		{"dragonfly", "", "dragonfly-sample1 dragonfly-sample2"},
		{"", "dragonfly-sample2", "dragonfly-sample2"},
		{"node", "node-sample3", "node-sample3"},
		{"switchbox", "node-sample3", ""},
	} {
		var got []string
		for _, e := range s.Select(tt.kind, tt.name) {
			got = append(got, e.Name)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("kind=%s name=%s: %v, want %s", tt.kind, tt.name, got, tt.want)
		}
	}
	var b bytes.Buffer
	if err := fabric.WriteElements(&b, s.Select("", "node-sample3")); err != nil {
		t.Fatal(err)
	}
	if want := `[{"name":"node-sample3","kind":"node","status":"Ready"}]` + "\n"; b.String() != want {
		t.Errorf("%s, want %s", b.String(), want)
	}
}

func TestSpines(t *testing.T) {
	t.Parallel()
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(96, 8), Rails: 8, Pod: 4, Spines: 8})
	s := mapOf(fabric.ModeAuto, f).Snapshot(start)
	pods := map[string][]int{}
	for _, spine := range s.Child {
		for _, leaf := range spine.Child {
			pods[spine.Kind] = append(pods[spine.Kind], leaf.Nodes.Ready)
		}
	}
	if diff := cmp.Diff(map[string][]int{"spine": slices.Repeat([]int{8}, 12)}, pods); diff != "" || len(s.Child) != 3 {
		t.Errorf("%d pods (-want +got):\n%s", len(s.Child), diff)
	}
	// The uplinks of a leaf count from nodes with a cable to it only.
	other := f.Nodes[95].Spec.DeepCopy()
	other.Uplinks = []v1alpha1.Uplink{{Leaf: f.Leaf(0, 0, 0).ID, Peer: "ff"}}
	m := mapOf(fabric.ModeAuto, f)
	m.Put(fabric.Node{Name: f.Nodes[95].Name, Ready: true, Report: read(other), Heartbeat: start})
	if got := m.Snapshot(start); got.ETag() != s.ETag() {
		t.Errorf("the report counted: %s", outline(treeOf(got.Child)))
	}
}

// Two leaves with a cable between them are not each other's spine, and a host on
// a spine makes it no leaf.
func TestLeavesBackToBack(t *testing.T) {
	t.Parallel()
	m := newMap(fabric.Preset(fabric.ModeAuto, 0)...)
	on := func(leaf string, peers ...string) *v1alpha1.NodeTopologySpec {
		spec := onto(leaf)
		for _, peer := range peers {
			spec.Uplinks = append(spec.Uplinks, v1alpha1.Uplink{Leaf: leaf, Peer: peer})
		}
		return spec
	}
	manager := onto("5")
	manager.Accelerators = nil
	for _, tt := range []struct {
		what  string
		nodes []fabric.Node
		want  string
	}{
		{
			"two leaves",
			[]fabric.Node{node("a", on("1", "2")), node("b", on("1")), node("c", on("2", "1")), node("d", on("2"))},
			"leaf-1(a b) leaf-2(c d)",
		},
		{
			"a spine above both",
			[]fabric.Node{node("a", on("1", "2", "5")), node("c", on("2", "1", "5"))},
			"spine-5(leaf-1(a b) leaf-2(c d))",
		},
		{"a host on the spine", []fabric.Node{node("m", manager)}, "leaf-5(m) spine-5(leaf-1(a b) leaf-2(c d))"},
		{
			"no node on leaf 2",
			[]fabric.Node{node("c", on("3", "1")), node("d", on("3"))},
			"leaf-3(c d) leaf-5(m) spine-2(leaf-1(a b))",
		},
	} {
		if got := outline(treeOf(put(m, tt.nodes...).Child)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.what, got, tt.want)
		}
	}
}
