package planner

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/gang"
)

// crossing are two leaves of three nodes and three NVLink domains of two, of which the
// second is on both leaves.
func crossing() (groups, domains []v1alpha1.Group) {
	domain := func(i int) v1alpha1.Group {
		g := leaf(fmt.Sprint("nvlink-", i), 2*i, 2*i+1)
		g.Kind = "nvlink"
		return g
	}
	one, two := leaf("leaf-0", 2), leaf("leaf-1", 3)
	one.Child, two.Child = append(one.Child, domain(0)), append(two.Child, domain(2))
	return []v1alpha1.Group{one, two}, []v1alpha1.Group{domain(1)}
}

// What a gang asks for decides by which axis it is planned.
func TestTheTreeOfAGang(t *testing.T) {
	names := []string{"n0", "n1", "n2", "n3", "n4", "n5", "new"}
	groups, domains := crossing()
	var f forest
	f.plant(groups, domains, names)
	for _, tt := range []struct {
		name string
		spec gang.Spec
		want *tree
	}{
		{"nothing", gang.Spec{}, f.nvlink},
		{"an NVLink domain", gang.Spec{Required: "nvlink"}, f.nvlink},
		{"a leaf", gang.Spec{Required: "leaf"}, f.fabric},
		{"a leaf if possible", gang.Spec{Preferred: "leaf"}, f.fabric},
		{"slices", gang.Spec{GroupSize: 8}, f.whole},
		{"slices on a leaf", gang.Spec{GroupSize: 8, Required: "leaf"}, f.fabric},
	} {
		if f.of(&tt.spec) != tt.want {
			t.Errorf("%s: another tree", tt.name)
		}
	}
	want := map[string]int{"nvlink": 2, "leaf": 3}
	if diff := cmp.Diff(want, f.largest([]int32{1, 1, 1, 1, 1, 1, 9})); diff != "" {
		t.Errorf("the largest gangs (-want +got):\n%s", diff)
	}
	groups[0].Kind = "nvlink-part"
	f.plant(groups, nil, names)
	if got := f.largest([]int32{1, 1, 1, 1, 1, 1, 9})["nvlink-part"]; got != 3 {
		t.Errorf("a group of topo-master's of the kind of parts has room for %d", got)
	}
	groups, _ = crossing()
	f.plant(groups, nil, names)
	if f.axes != nil || f.of(&gang.Spec{Required: "leaf"}) != f.of(&gang.Spec{GroupSize: 8}) || f.fabric == nil {
		t.Error("two axes where no domain crosses")
	}
	// A domain that has the name of a part contradicts the trees, and is not believed.
	bad := leaf("nvlink-1 on leaf leaf-0", 2)
	bad.Kind = "nvlink-part"
	f.plant(append(groups, leaf("x")), []v1alpha1.Group{bad, {Name: "", Kind: "nvlink", Child: bad.Child}}, names)
	if f.fabric == nil {
		t.Error("no tree")
	}
}
