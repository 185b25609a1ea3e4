package fabric_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
)

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
			s := put(newMap(fabric.Preset(fabric.ModeLeaf, 0)...), tt.nodes...)
			names := outline(treeOf(s.Child))
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
	m := mapOf(fabric.ModeLeaf, f)
	before := groups(m.Snapshot(start))
	for i := range f.Nodes {
		r := &f.Nodes[i].Spec.Rails[0] // The least of the group's leaves.
		r.LinkState, r.Switch = v1alpha1.LinkDown, nil
		r.Since = new(metav1.NewTime(start)) // As the worker reports a port that went down.
		n := input(&f.Nodes[i])
		n.Names = []string{before[n.Name]}
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

// TestDescriptions: a group is called as its switch is, whose GUID is detail.
func TestDescriptions(t *testing.T) {
	t.Parallel()
	const guid = "2c5eab0300c26480"
	on := func(id, name string) *v1alpha1.NodeTopologySpec { return report(cable{leaf: id, name: name}) }
	long := strings.Repeat("a-very-long-name-", 6)
	for _, tt := range []struct {
		name  string
		nodes []fabric.Node
		want  string
	}{
		{"its own word", []fabric.Node{node("a", on(guid, "su1 rail3"))}, "leaf-su1-rail3(a)"},
		{"the kind does not stand twice", []fabric.Node{node("a", on(guid, "leaf-07.dc1"))}, "leaf-07.dc1(a)"},
		{"as NVIDIA's switches have it", []fabric.Node{node("a", on(guid, "MF0;leaf-07:MQM9700/U1"))}, "leaf-07(a)"},
		{"the third chip of a box", []fabric.Node{node("a", on(guid, "MF0;xdr-1:Q3400-RA/U3"))}, "leaf-xdr-1-U3(a)"},
		{"every switch of the model", []fabric.Node{node("a", on(guid, "Quantum Mellanox Technologies"))}, "leaf-" + guid + "(a)"},
		{"no letters of a label", []fabric.Node{node("a", on(guid, "交换机"))}, "leaf-" + guid + "(a)"},
		{"most of the reports", []fabric.Node{
			node("a", on(guid, "old")), node("b", on(guid, "new")), node("c", on(guid, "new")),
		}, "leaf-new(a b c)"},
		{
			"two of one name: both get a suffix",
			[]fabric.Node{node("a", on("1", "sw")), node("b", on("2", "sw"))},
			"leaf-sw-ad32(b) leaf-sw-e8bc(a)",
		},
		{
			"one had the name already",
			[]fabric.Node{node("a", on("1", "sw")), node("b", on("2", "sw"), "leaf-sw")},
			"leaf-sw(b) leaf-sw-e8bc(a)",
		},
		{
			"a suffix stays when it is no longer needed",
			[]fabric.Node{node("a", on("1", "sw"), "leaf-sw-3c0d")},
			"leaf-sw-3c0d(a)",
		},
		{
			"the name by the GUID was for want of a better one",
			[]fabric.Node{node("a", on(guid, "sw"), "leaf-"+guid), node("b", on(guid, "sw"), "leaf-"+guid)},
			"leaf-sw(a b)",
		},
		{
			"a description that is not known for a while",
			[]fabric.Node{node("a", on("1", ""), "leaf-sw")},
			"leaf-sw(a)",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := put(newMap(fabric.Preset(fabric.ModeLeaf, 0)...), tt.nodes...)
			if diff := cmp.Diff(tt.want, outline(treeOf(s.Child))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for _, name := range []string{long, long + "b"} {
		s := put(newMap(fabric.Preset(fabric.ModeLeaf, 0)...), node("a", on("1", name)), node("b", on("2", name)))
		for _, e := range s.Child {
			if err := wellknown.CheckValue(e.Name); err != nil {
				t.Error(err)
			}
		}
		if len(s.Child) != 2 || s.Child[0].Name == s.Child[1].Name || s.Child[0].Key == s.Child[1].Key {
			t.Errorf("%d groups, %s and %s", len(s.Child), s.Child[0].Name, s.Child[1].Name)
		}
	}
}

// TestNamesStay: whatever the order in which groups of one name appear, and
// over restarts and added groups, a group keeps the name that its nodes carry.
func TestNamesStay(t *testing.T) {
	t.Parallel()
	called := func(all ...string) map[string]string {
		m := newMap(fabric.Preset(fabric.ModeLeaf, 0)...)
		for _, id := range all {
			id, label, _ := strings.Cut(id, "=")
			m.Put(node("node-"+id, report(cable{leaf: id, name: "sw"}), label))
		}
		return groups(m.Snapshot(start))
	}
	fresh := called("3", "1", "2")
	if diff := cmp.Diff(fresh, called("2", "3", "1")); diff != "" {
		t.Errorf("in another order (-want +got):\n%s", diff)
	}
	var labels []string
	for node, name := range fresh {
		labels = append(labels, strings.TrimPrefix(node, "node-")+"="+name)
	}
	again := called(append(labels, "0", "9")...)
	for node, name := range fresh {
		if again[node] != name {
			t.Errorf("%s was in %s and is in %s once two more of the name are there", node, name, again[node])
		}
	}
	// Live: the second of a name comes after the first has its label.
	m := newMap(fabric.Preset(fabric.ModeLeaf, 0)...)
	m.Put(node("b", report(cable{leaf: "2", name: "sw"})))
	if got := groups(m.Snapshot(start))["b"]; got != "leaf-sw" {
		t.Errorf("alone it is called %s", got)
	}
	m.Put(node("b", report(cable{leaf: "2", name: "sw"}), "leaf-sw"), node("a", report(cable{leaf: "1", name: "sw"})))
	if got := groups(m.Snapshot(start)); got["b"] != "leaf-sw" || got["a"] == "leaf-sw" {
		t.Errorf("%v", got)
	}
	// The description changes while nothing else does: it was unknown.
	m.Put(node("c", report(cable{leaf: "3"})))
	m.Snapshot(start)
	m.Put(node("c", report(cable{leaf: "3", name: "other"})))
	if got := groups(m.Snapshot(start))["c"]; got != "leaf-other" {
		t.Errorf("with a description it is called %s", got)
	}
}
