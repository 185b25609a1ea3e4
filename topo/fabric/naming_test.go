package fabric_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
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
			s := put(newMap(t, preset(t, fabric.ModeLeaf)...), tt.nodes...)
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
	m := mapOf(t, fabric.ModeLeaf, f)
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
