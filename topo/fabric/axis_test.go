package fabric_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// trays are n nodes of GB200 racks of 18 on two leaves for two rails each, which
// the nodes fill in their order: sizes are how many a pair of leaves takes.
func trays(n int, sizes ...int) []fabric.Node {
	var all []fabric.Node
	group, room := 0, sizes[0]
	for i := range n {
		if room == 0 {
			group++
			room = sizes[group%len(sizes)]
		}
		room--
		spec := onto(fmt.Sprintf("%d0", 10+group), fmt.Sprintf("%d1", 10+group))
		spec.NVLinkDomain = fmt.Sprintf("rack.%02d", i/18)
		all = append(all, node(fmt.Sprintf("tray-%03d", i), spec))
	}
	return all
}

// shape is what a list holds: how many nodes are in how many groups of a kind.
func shape(list []*fabric.Element) map[string][]int {
	out := map[string][]int{}
	var walk func([]*fabric.Element)
	walk = func(list []*fabric.Element) {
		for _, e := range list {
			if e.Kind != "node" {
				out[e.Kind] = append(out[e.Kind], e.Nodes.Ready)
				walk(e.Child)
			}
		}
	}
	walk(list)
	return out
}

// An NVL72 rack across two leaf groups changes neither of them.
func TestRacksAcrossLeafGroups(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                   string
		nodes                  []fabric.Node
		auto, onFabric, nvlink map[string][]int
		crossing               int
	}{
		{
			"72 trays over 32, 32 and 8", trays(72, 32, 32, 8),
			map[string][]int{"leaf": {32, 32, 8}, "nvlink": {18, 18}},
			map[string][]int{"leaf": {32, 32, 8}},
			map[string][]int{"nvlink": {18, 18, 18, 18}},
			2,
		},
		{
			"288 trays over leaves of 32", trays(288, 32),
			map[string][]int{"leaf": {32, 32, 32, 32, 32, 32, 32, 32, 32}, "nvlink": {18, 18, 18, 18, 18, 18, 18, 18}},
			map[string][]int{"leaf": {32, 32, 32, 32, 32, 32, 32, 32, 32}},
			map[string][]int{"nvlink": {18, 18, 18, 18, 18, 18, 18, 18, 18, 18, 18, 18, 18, 18, 18, 18}},
			8,
		},
		{
			"a rack for each leaf group", trays(36, 18),
			map[string][]int{"leaf": {18, 18}, "nvlink": {18, 18}},
			map[string][]int{"leaf": {18, 18}},
			map[string][]int{"nvlink": {18, 18}},
			0,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := put(newMap(fabric.Preset(fabric.ModeAuto, 0)...), tt.nodes...)
			for _, axis := range []struct {
				name fabric.Axis
				want map[string][]int
			}{{fabric.AxisAuto, tt.auto}, {fabric.AxisFabric, tt.onFabric}, {fabric.AxisNVLink, tt.nvlink}} {
				along := s.Along(axis.name)
				if diff := cmp.Diff(axis.want, shape(along.Child)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", axis.name, diff)
				}
				if along.Nodes != s.Nodes {
					t.Errorf("%s has %+v nodes of %+v", axis.name, along.Nodes, s.Nodes)
				}
				checkLeaves(t, along, tt.nodes)
			}
			if len(s.Crossing) != tt.crossing {
				t.Errorf("%d racks cross, want %d", len(s.Crossing), tt.crossing)
			}
			if got := len(s.Select("nvlink", "")); got != len(tt.nvlink["nvlink"]) {
				t.Errorf("kind=nvlink selects %d of %d racks", got, len(tt.nvlink["nvlink"]))
			}
		})
	}
}

// A node that reports the NVLink domain of another rack, or of another product, takes nothing from that.
func TestForeignNVLinkDomain(t *testing.T) {
	t.Parallel()
	for what, odd := range map[string]func(spec *v1alpha1.NodeTopologySpec){
		"another rack's":    func(spec *v1alpha1.NodeTopologySpec) { spec.NVLinkDomain = "rack.00" },
		"another product's": func(spec *v1alpha1.NodeTopologySpec) { spec.Accelerators[0].Product = "NVIDIA-H100" },
	} {
		nodes := trays(54, 18)
		spec := nodes[20].Report.Spec()
		odd(spec)
		nodes[20].Report = read(spec)
		s := put(newMap(fabric.Preset(fabric.ModeAuto, 0)...), nodes...)
		want := map[string][]int{"leaf": {18, 17, 18}, "nvlink": {18, 17, 18}}
		if diff := cmp.Diff(want, shape(s.Child)); diff != "" || len(s.Crossing) > 0 {
			t.Errorf("%s: %d crossing domains (-want +got):\n%s", what, len(s.Crossing), diff)
		}
		list := s.Findings()
		if len(list) != 1 || list[0].Node != nodes[20].Name || list[0].Kind != fabric.BadPath || list[0].Other != spec.NVLinkDomain {
			t.Errorf("%s: findings %+v", what, list)
		}
	}
}

// checkLeaves checks that every node stands under the leaf of its cables and in
// the NVLink domain that it reports, and each group under its own name once.
func checkLeaves(t *testing.T, s *fabric.Snapshot, nodes []fabric.Node) {
	t.Helper()
	leaf, rack := map[string]string{}, map[string]string{}
	for i := range nodes {
		spec := nodes[i].Report.Spec()
		leaf[nodes[i].Name], rack[nodes[i].Name] = "leaf-"+spec.Rails[0].Switch.ID, "nvlink-"+spec.NVLinkDomain
	}
	for holders, e := range s.All() {
		for _, h := range holders {
			if e.Kind == "node" && h.Name != leaf[e.Name] && h.Name != rack[e.Name] {
				t.Errorf("%s stands in %s, and is in %s and %s", e.Name, h.Name, leaf[e.Name], rack[e.Name])
			}
		}
	}
}

func same(t *testing.T, got, want *fabric.Snapshot) {
	t.Helper()
	for _, axis := range []fabric.Axis{fabric.AxisAuto, fabric.AxisFabric, fabric.AxisNVLink} {
		var a, b bytes.Buffer
		_ = want.Along(axis).Write(&a)
		_ = got.Along(axis).Write(&b)
		if diff := cmp.Diff(a.String(), b.String()); diff != "" || got.Along(axis).ETag() != want.Along(axis).ETag() {
			t.Fatalf("%s (-new map +changed one):\n%s", axis, diff)
		}
	}
}

// Where no NVLink domain crosses, the fabric's axis without NVLink is the answer
// itself.
func TestAxisOfAFleetWithoutNVLink(t *testing.T) {
	t.Parallel()
	s := put(mapOf(fabric.ModeAuto, fabrics.New(fabrics.Plan{Sizes: []int{4, 4}, Rails: 2})))
	if s.Along(fabric.AxisFabric) != s || s.Along(fabric.AxisAuto) != s {
		t.Error("another snapshot")
	}
	if got := shape(s.Along(fabric.AxisNVLink).Child); len(got) > 0 {
		t.Errorf("groups %v", got)
	}
}
