package fabric_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// FuzzReports puts whatever reports there may be: the tree is sound, and the
// same in whatever order they come and whatever came between.
func FuzzReports(f *testing.F) {
	for _, specs := range [][]*v1alpha1.NodeTopologySpec{
		{onto("1", "2", "3"), onto("1", "2", "3"), onto("1", "9", "3")},
		{pathed("switchbox-1", "dragonfly-1"), pathed("dragonfly-1", "switchbox-1"), pathed("1", "2", "3")},
		{{NVLinkDomain: "x.1", Rails: onto("0xAA").Rails, Uplinks: []v1alpha1.Uplink{{Leaf: "aa", Peer: "aa"}, {Leaf: "aa", Peer: "bb"}}}},
	} {
		b, err := json.Marshal(specs)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, "leaf-1", uint8(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, remembered string, mode uint8) {
		var specs []*v1alpha1.NodeTopologySpec
		if json.Unmarshal(b, &specs) != nil || len(specs) > 12 {
			t.Skip()
		}
		modes := []fabric.Mode{fabric.ModeAuto, fabric.ModeDragonfly, fabric.ModeSwitchbox, fabric.ModeLeaf, fabric.ModeNVLink}
		levels := fabric.Preset(modes[int(mode)%len(modes)], 0)
		var nodes []fabric.Node
		for i, spec := range specs {
			n := node(fmt.Sprintf("n%02d", i), spec)
			if i%2 == 0 {
				n.Names = []string{remembered}
			}
			nodes = append(nodes, n)
		}
		m := newMap(levels...)
		for _, n := range nodes { // A different past.
			n.Names = nil
			put(m, n)
		}
		for i, n := range nodes {
			if i%3 == 0 {
				m.Remove(n.Name)
				m.Snapshot(start)
			}
			put(m, n)
		}
		s := m.Snapshot(start)
		got := viewOf(t, s)
		check(t, got, treeOf(s.Child))
		slices.Reverse(nodes)
		if diff := cmp.Diff(viewOf(t, put(newMap(levels...), nodes...)), got); diff != "" {
			t.Errorf("(-from scratch +incremental):\n%s", diff)
		}
	})
}
