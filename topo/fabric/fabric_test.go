package fabric_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// cable is a fabric port: rail, leaf, and what is particular.
type cable struct {
	rail  int32
	leaf  string
	plane int32
	port  string
	role  string
	down  bool
	sure  int32
}

func report(cables ...cable) *v1alpha1.NodeTopologySpec {
	spec := &v1alpha1.NodeTopologySpec{}
	for _, c := range cables {
		r := v1alpha1.Rail{
			Rail: c.rail, Plane: c.plane, HCA: "mlx5_" + string('0'+c.rail), ID: "0000:0" + string('0'+c.rail) + ":00.0",
			Port: c.plane + 1, Role: "fabric", LinkState: v1alpha1.LinkActive, SwitchPort: c.port, Confidence: c.sure,
		}
		if c.role != "" {
			r.Role = c.role
		}
		if c.down {
			r.LinkState = v1alpha1.LinkDown
		}
		if c.leaf != "" {
			r.Switch = &v1alpha1.Switch{ID: c.leaf, Name: "sw-" + c.leaf}
		}
		spec.Rails = append(spec.Rails, r)
	}
	return spec
}

// onto is a report with rail i on the i-th leaf.
func onto(leaves ...string) *v1alpha1.NodeTopologySpec {
	var all []cable
	for i, leaf := range leaves {
		all = append(all, cable{rail: int32(i), leaf: leaf})
	}
	return report(all...)
}

func node(name string, spec *v1alpha1.NodeTopologySpec, names ...string) fabric.Node {
	return fabric.Node{Name: name, Ready: true, Report: spec, Heartbeat: start, Names: names}
}

func put(m *fabric.Map, all ...fabric.Node) *fabric.Snapshot {
	for _, n := range all {
		m.Put(n)
	}
	return m.Snapshot(start)
}

// outline is the tree in short: group(child child), a node by its name.
func outline(list []v1alpha1.Group) string {
	var parts []string
	for _, g := range list {
		s := g.Name
		if g.Kind != v1alpha1.KindNode {
			s += "(" + outline(g.Child) + ")"
		}
		if g.Status != v1alpha1.StatusReady {
			s += ":" + g.Status
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ")
}

func pathed(path ...string) *v1alpha1.NodeTopologySpec {
	return &v1alpha1.NodeTopologySpec{Path: path, PathSource: v1alpha1.SourceStatic}
}

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
			"a switch that the worker itself doubts groups nothing", fabric.ModeLeaf,
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
			"racks below the leaves that most of them use", fabric.ModeAuto,
			[]fabric.Node{
				node("a", nvlink(onto("1", "2"), "X.1")), node("b", nvlink(onto("1", "2"), "X.1")), node("c", nvlink(onto("7", "8"), "X.1")),
				node("d", nvlink(onto("7", "8"), "X.2")), node("e", onto("7", "8")), node("f", nvlink(onto(), "X.3")),
			},
			"leaf-1(nvlink-X.1(a b c)) leaf-7(e nvlink-X.2(d)) nvlink-X.3(f)",
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
			m := newMap(t, preset(t, tt.mode)...)
			s := put(m, tt.nodes...)
			if diff := cmp.Diff(tt.want, outline(s.Tree())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			check(t, viewOf(t, s), s.Tree())
		})
	}
}

// sample is what topo-masters of this kind have always answered.
const sample = `[{"name":"switchbox-sample1","kind":"switchbox","child":[{"name":"dragonfly-sample1","kind":"dragonfly","child":[{"name":"node-sample1","kind":"node","status":"Ready"},{"name":"node-sample2","kind":"node","status":"Ready"}],"status":"Ready"},{"name":"dragonfly-sample2","kind":"dragonfly","child":[{"name":"node-sample3","kind":"node","status":"Ready"},{"name":"node-sample4","kind":"node","status":"Ready"}],"status":"Ready"}],"status":"Ready"}]
`

func TestSample(t *testing.T) {
	t.Parallel()
	m := newMap(t, preset(t, fabric.ModeSwitchbox)...)
	s := put(m,
		node("node-sample4", pathed("switchbox-sample1", "dragonfly-sample2")),
		node("node-sample1", pathed("switchbox-sample1", "dragonfly-sample1")),
		node("node-sample3", pathed("switchbox-sample1", "dragonfly-sample2")),
		node("node-sample2", pathed("switchbox-sample1", "dragonfly-sample1")),
	)
	if diff := cmp.Diff(sample, viewOf(t, s).Body); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	packed, err := s.Gzip()
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil || string(plain) != sample {
		t.Errorf("gzip holds %q, %v", plain, err)
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

func TestFindings(t *testing.T) {
	t.Parallel()
	sw := func(id string) *fabric.Switch { return &fabric.Switch{ID: id, Name: "sw-" + id} }
	crew := func(spec *v1alpha1.NodeTopologySpec) []fabric.Node {
		full := func() *v1alpha1.NodeTopologySpec { return onto("1", "2", "3", "4") }
		return []fabric.Node{node("a", full()), node("b", full()), node("c", full()), node("d", spec)}
	}
	at := func(kind fabric.Fault, rail int32, expected, found *fabric.Switch) fabric.Finding {
		f := fabric.Finding{Kind: kind, Node: "d", Group: "1", Rail: rail, Expected: expected, Found: found}
		if kind != fabric.Missing {
			f.HCA, f.ID, f.Port = "mlx5_"+string('0'+rail), "0000:0"+string('0'+rail)+":00.0", 1
		}
		return f
	}
	down := report(cable{0, "1", 0, "", "", false, 0}, cable{rail: 1, leaf: "2", down: true}, cable{rail: 2, down: true}, cable{rail: 3})
	twin := onto("1", "2", "3", "4")
	for i := range twin.Rails {
		twin.Rails[i].GUID = "946d:ae03:0012:0000"
	}
	for _, tt := range []struct {
		name  string
		nodes []fabric.Node
		want  []fabric.Finding
	}{
		{"all is well", crew(onto("1", "2", "3", "4")), nil},
		{"a leaf that nobody knows", crew(onto("1", "2", "x", "4")), []fabric.Finding{at(fabric.Miscabled, 2, sw("3"), sw("x"))}},
		{"two exchanged", crew(onto("1", "3", "2", "4")), []fabric.Finding{
			at(fabric.Miscabled, 1, sw("2"), sw("3")), at(fabric.Miscabled, 2, sw("3"), sw("2")),
		}},
		{"dead with and without memory of its switch, unseen", crew(down), []fabric.Finding{
			at(fabric.Dead, 1, sw("2"), sw("2")), at(fabric.Dead, 2, sw("3"), nil), at(fabric.Unseen, 3, sw("4"), nil),
		}},
		{"an HCA fell off the bus", crew(report(cable{rail: 0, leaf: "1"}, cable{rail: 2, leaf: "3"}, cable{rail: 3, leaf: "4"})), []fabric.Finding{
			at(fabric.Missing, 1, sw("2"), nil),
		}},
		{"an HCA fell off the bus and the others moved up", crew(onto("1", "3", "4")), []fabric.Finding{at(fabric.Missing, 1, sw("2"), nil)}},
		{"a node of another make lacks nothing", crew(func() *v1alpha1.NodeTopologySpec {
			spec := onto("1", "2")
			spec.Accelerators = []v1alpha1.Accelerator{{Product: "NVIDIA-L40S", Count: 4}}
			return spec
		}()), nil},
		{
			"a lonely node on somebody else's leaf",
			[]fabric.Node{node("a", onto("1", "2", "3")), node("b", onto("1", "2", "3")), node("d", onto("7", "2", "9"))},
			[]fabric.Finding{{
				Kind: fabric.Miscabled, Node: "d", Group: "7", HCA: "mlx5_1", ID: "0000:01:00.0", Port: 1, Rail: 1, Found: sw("2"),
			}},
		},
		{"rails that nobody keeps to prove nothing", []fabric.Node{
			node("a", onto("1", "2", "1", "2")), node("b", onto("2", "1", "1", "2")),
			node("c", onto("1", "2", "2", "1")), node("d", onto("2", "1", "2", "1")),
		}, nil},
		{"two nodes with one GUID", []fabric.Node{node("a", twin.DeepCopy()), node("b", twin.DeepCopy()), node("d", onto("1", "2", "3", "4"))}, func() []fabric.Finding {
			var all []fabric.Finding
			for _, pair := range [][2]string{{"a", "b"}, {"b", "a"}} {
				for rail := range int32(4) {
					f := at(fabric.Duplicate, rail, nil, sw(string('1'+rail)))
					f.Node, f.Other, f.Group = pair[0], pair[1], ""
					all = append(all, f)
				}
			}
			return all
		}()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, put(newMap(t, preset(t, fabric.ModeAuto)...), tt.nodes...).Findings()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSinceWhen(t *testing.T) {
	t.Parallel()
	early, late := start.Add(-2*time.Hour).UTC(), start.Add(-time.Hour).UTC()
	full := func() *v1alpha1.NodeTopologySpec { return onto("1", "2", "3", "4") }
	for _, tt := range []struct {
		name       string
		since      [2]time.Time // Of rails 1 and 2; zero is unknown.
		down       bool
		reason     time.Time
		rail, next time.Time
	}{
		{"mis-cabled", [2]time.Time{late, early}, false, early, late, early},
		{"dead", [2]time.Time{early, late}, true, early, early, late},
		{"one of two is unknown", [2]time.Time{late, {}}, true, time.Time{}, late, time.Time{}},
		{"unknown", [2]time.Time{}, false, time.Time{}, time.Time{}, time.Time{}},
		{"nonsense", [2]time.Time{time.Unix(-5, 0), time.Unix(1<<40, 0)}, true, time.Time{}, time.Time{}, time.Time{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			spec := onto("1", "3", "2", "4")
			for i, at := range tt.since {
				r := &spec.Rails[i+1]
				if !at.IsZero() {
					r.Since = new(metav1.NewTime(at.Local()))
				}
				if tt.down {
					r.LinkState = v1alpha1.LinkDown
				}
			}
			m := newMap(t, preset(t, fabric.ModeAuto)...)
			s := put(m, node("a", full()), node("b", full()), node("c", full()), node("d", spec))
			var got []time.Time
			for _, f := range s.Findings() {
				got = append(got, f.Since)
			}
			if diff := cmp.Diff([]time.Time{tt.rail, tt.next}, got); diff != "" {
				t.Errorf("findings since (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.reason, s.Select("node", "d")[0].Reasons[0].Since); diff != "" {
				t.Errorf("reason since (-want +got):\n%s", diff)
			}
			// A later time alone is news.
			spec = spec.DeepCopy()
			spec.Rails[1].Since = new(metav1.NewTime(start))
			if now := put(m, node("d", spec)); now == s || !now.Findings()[0].Since.Equal(start) || now.ETag() != s.ETag() {
				t.Errorf("after a change since %s", now.Findings()[0].Since)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	m := newMap(t, preset(t, fabric.ModeLeaf)...)
	n := node("a", onto("1"))
	s := put(m, n, node("b", onto("1")))
	if again := m.Snapshot(start); again != s {
		t.Error("nothing changed, and there is another snapshot")
	}
	for _, step := range []struct {
		name string
		do   func() *fabric.Snapshot
		want string
		why  []fabric.Reason
	}{
		{"not ready", func() *fabric.Snapshot {
			n.Ready, n.Since = false, start
			return put(m, n)
		}, "leaf-1(a:NotReady b):Degraded", []fabric.Reason{{Kind: fabric.ReasonNodeNotReady, Since: start}}},
		{"all not ready", func() *fabric.Snapshot {
			return put(m, fabric.Node{Name: "b", Report: onto("1"), Heartbeat: start})
		}, "leaf-1(a:NotReady b:NotReady):NotReady", []fabric.Reason{{Kind: fabric.ReasonNodeNotReady, Since: start}}},
		{"ready again", func() *fabric.Snapshot {
			n.Ready = true
			return put(m, n, node("b", onto("1")))
		}, "leaf-1(a b)", nil},
		{"not stale yet", func() *fabric.Snapshot { return m.Snapshot(start.Add(fabric.DefaultStaleAfter)) }, "leaf-1(a b)", nil},
		{"stale", func() *fabric.Snapshot {
			m.Beat("b", start.Add(time.Minute))
			return m.Snapshot(start.Add(fabric.DefaultStaleAfter + 1))
		}, "leaf-1(a:Degraded b):Degraded", []fabric.Reason{{Kind: fabric.ReasonStale, Since: start.Add(fabric.DefaultStaleAfter)}}},
		{"a heartbeat", func() *fabric.Snapshot {
			m.Beat("a", start.Add(5*time.Minute))
			return m.Snapshot(start.Add(fabric.DefaultStaleAfter + 2))
		}, "leaf-1(a b)", nil},
		{"from the future", func() *fabric.Snapshot {
			m.Beat("a", start.Add(24*time.Hour))
			return m.Snapshot(start.Add(fabric.DefaultStaleAfter + 3))
		}, "leaf-1(a:Degraded b):Degraded", []fabric.Reason{{Kind: fabric.ReasonClock}}},
		{"its time has come", func() *fabric.Snapshot {
			m.Beat("b", start.Add(24*time.Hour))
			return m.Snapshot(start.Add(24 * time.Hour))
		}, "leaf-1(a b)", nil},
		{"no report any more: the place is unknown, the age as well", func() *fabric.Snapshot {
			n.Report = nil
			m.Put(n)
			return m.Snapshot(start.Add(24 * time.Hour))
		}, "a leaf-1(b)", nil},
		{"gone", func() *fabric.Snapshot {
			m.Remove("a")
			m.Remove("nobody")
			return m.Snapshot(start.Add(24 * time.Hour))
		}, "leaf-1(b)", nil},
	} {
		s := step.do()
		if diff := cmp.Diff(step.want, outline(s.Tree())); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", step.name, diff)
		}
		for _, e := range s.Select("node", "a") {
			if diff := cmp.Diff(step.why, e.Reasons); diff != "" {
				t.Errorf("%s: reasons (-want +got):\n%s", step.name, diff)
			}
		}
	}
	if at, ok := m.Alarm(); !ok || at.Before(start.Add(24*time.Hour)) {
		t.Errorf("the next look is due at %v, %v", at, ok)
	}
}

// Names outlive the switch that they come from, as long as most members know
// them.
func TestNames(t *testing.T) {
	t.Parallel()
	was := func(name string) []string { return []string{"nvlink-x", name} }
	for _, tt := range []struct {
		name  string
		nodes []fabric.Node
		want  string
	}{
		{
			"the anchor is dead",
			[]fabric.Node{node("a", onto("", "2", "3"), was("leaf-1")...), node("b", onto("", "2", "3"), was("leaf-1")...)},
			"leaf-1(a b)",
		},
		{
			"half of the members remember: not enough",
			[]fabric.Node{node("a", onto("2"), was("leaf-1")...), node("b", onto("2"))},
			"leaf-2(a b)",
		},
		{
			"a group split: the larger part keeps the name",
			[]fabric.Node{
				node("a", onto("2"), was("leaf-1")...), node("b", onto("3"), was("leaf-1")...), node("c", onto("3"), was("leaf-1")...),
			},
			"leaf-1(b c) leaf-2(a)",
		},
		{
			"the name is taken by memory: its switch's new group gets a number",
			[]fabric.Node{node("a", onto("2"), was("leaf-1")...), node("b", onto("2"), was("leaf-1")...), node("c", onto("1"))},
			"leaf-1(a b) leaf-1-2(c)",
		},
		{
			"one who moved takes over the new name",
			[]fabric.Node{node("a", onto("2"), was("leaf-2")...), node("b", onto("2"), was("leaf-2")...), node("c", onto("2"), was("leaf-1")...)},
			"leaf-2(a b c)",
		},
		{
			"what is no name of that kind is not remembered",
			[]fabric.Node{node("a", onto("2"), "leaf-", "leaf-{}", "spine-4", "leaf")},
			"leaf-2(a)",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := put(newMap(t, preset(t, fabric.ModeLeaf)...), tt.nodes...)
			names := outline(s.Tree())
			names = strings.NewReplacer(":Degraded", "").Replace(names)
			if diff := cmp.Diff(tt.want, names); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A leaf switch dies: without memory the groups keep together and only the
// name changes; with labels not even that.
func TestLeafDies(t *testing.T) {
	t.Parallel()
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(64, 16), Rails: 8})
	m := mapOf(t, fabric.ModeLeaf, f)
	before := groups(m.Snapshot(start))
	for i := range f.Nodes {
		n := input(&f.Nodes[i])
		n.Names = []string{before[n.Name]}
		r := &f.Nodes[i].Spec.Rails[0] // The least of the group's leaves.
		r.LinkState, r.Switch = v1alpha1.LinkDown, nil
		m.Put(n)
	}
	s := m.Snapshot(start)
	if diff := cmp.Diff(before, groups(s)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	if n := len(s.Findings()); n != 64 {
		t.Errorf("%d findings for 64 dead ports", n)
	}
}

func TestSpines(t *testing.T) {
	t.Parallel()
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(96, 8), Rails: 8, Pod: 4, Spines: 8})
	s := mapOf(t, fabric.ModeAuto, f).Snapshot(start)
	pods := map[string][]int{}
	for _, spine := range s.Child {
		for _, leaf := range spine.Child {
			pods[spine.Kind] = append(pods[spine.Kind], leaf.Nodes.Ready)
		}
	}
	if diff := cmp.Diff(map[string][]int{"spine": slices.Repeat([]int{8}, 12)}, pods); diff != "" || len(s.Child) != 3 {
		t.Errorf("%d pods (-want +got):\n%s", len(s.Child), diff)
	}
	// Who has no cable to a leaf is not believed about its uplinks.
	liar := f.Nodes[95].Spec.DeepCopy()
	liar.Uplinks = []v1alpha1.Uplink{{Leaf: f.Leaf(0, 0, 0).ID, Peer: "ff"}}
	m := mapOf(t, fabric.ModeAuto, f)
	m.Put(fabric.Node{Name: f.Nodes[95].Name, Ready: true, Report: liar, Heartbeat: start})
	if got := m.Snapshot(start); got.ETag() != s.ETag() {
		t.Errorf("the liar was believed: %s", outline(got.Tree()))
	}
}

func TestWalks(t *testing.T) {
	t.Parallel()
	f := fabrics.New(fabrics.Plan{Sizes: fabrics.Even(64, 16), Rails: 8})
	m := mapOf(t, fabric.ModeAuto, f)
	first := m.Walks(nil)
	owner, most := map[string]string{}, 0
	for node, leaves := range first {
		most = max(most, len(leaves))
		for _, leaf := range leaves {
			owner[leaf] = node
		}
	}
	if len(owner) != 32 || most > 4 {
		t.Fatalf("%d leaves are walked, up to %d by one node: %v", len(owner), most, first)
	}
	gone := owner[f.Leaf(1, 3, 0).ID]
	m.Remove(gone)
	second := map[string]string{}
	for node, leaves := range m.Walks(nil) {
		for _, leaf := range leaves {
			second[leaf] = node
		}
	}
	for _, leaf := range slices.Sorted(maps.Keys(owner)) {
		if owner[leaf] == gone && second[leaf] == gone || owner[leaf] != gone && second[leaf] != owner[leaf] {
			t.Errorf("leaf %s went from %s to %s when %s left", leaf, owner[leaf], second[leaf], gone)
		}
	}
}

func TestLevels(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		levels []fabric.Level
		want   string
	}{
		{"none", nil, "levels: 0 are configured, 1 to 8 are possible"},
		{
			"every fault",
			[]fabric.Level{
				{Kind: "node", By: fabric.ByLeaf},
				{Kind: "Rack 1", By: "shade"},
				{Kind: "pair", By: fabric.ByBlock},
				{Kind: "leaf", By: fabric.ByLeaf, Nodes: 3},
			},
			"levels[0]: kind node is taken\n" +
				"levels[1]: kind \"Rack 1\" is not 1 to 20 lower-case letters and digits\n" +
				"levels[1]: by \"shade\" is none of path, spine, leaf, nvlink, block\n" +
				"levels[2]: nodes is 0, not 1 to 4096\n" +
				"levels[3]: nodes is for levels by block",
		},
	} {
		_, err := fabric.New(fabric.Config{Levels: tt.levels})
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
	for mode, want := range map[fabric.Mode]string{"custom": "has no preset", "ring": "is none of"} {
		if _, err := fabric.Preset(mode, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("mode %s: %v", mode, err)
		}
	}
	if _, err := fabric.Preset(fabric.ModeDragonfly, -1); err == nil {
		t.Error("a dragonfly of -1 nodes is accepted")
	}
}
