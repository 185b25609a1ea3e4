package snapshot_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/fabrics"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// portsOf are a fabric's ports as topo-master answers them.
func portsOf(tb testing.TB, f *fabrics.Fabric) *snapshot.Snapshot {
	tb.Helper()
	levels := fabric.Preset(fabric.ModeAuto, 0)
	m := fabric.New(levels)
	nodes := map[string]*informers.NodeState{}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		report := &informers.Report{Report: fabric.Read(&n.Spec), Name: n.Name, Owner: "uid"}
		nodes[n.Name] = &informers.NodeState{
			Name: n.Name, Node: &informers.Node{Name: n.Name, UID: "uid", Ready: true}, Report: report,
		}
		m.Put(fabric.Node{
			Name: n.Name, Ready: true, Report: report.Report,
			Names: []string{f.Leaf(n.Group, 0, 0).Name}, // It decides between two groups with one cable each.
		})
	}
	return &snapshot.Snapshot{Tree: m.Snapshot(time.Unix(1, 0)), Levels: levels, Nodes: table(nodes)}
}

// lines are ports as a person would write them down.
func lines(list *snapshot.PortList) (out []string) {
	for _, p := range list.Ports {
		text := fmt.Sprintf("%s rail %d", p.Node, p.Rail.Rail)
		if p.Switch != nil {
			text += " on " + p.Switch.Name + " " + p.SwitchPort
		}
		if p.Finding != nil {
			text += fmt.Sprintf(", %s, expected %s", p.Finding.Kind, p.Finding.Expected.Name)
		}
		if p.Foreign {
			text += ", foreign"
		}
		out = append(out, text)
	}
	return out
}

func TestPorts(t *testing.T) {
	f := fabrics.New(fabrics.Plan{Sizes: []int{4, 4}, Rails: 2, Pod: 2, Spines: 2})
	wrong := &f.Nodes[1].Spec.Rails[1]
	wrong.Switch, wrong.SwitchPort = new(f.Leaf(1, 1, 0)), "64"
	f.Nodes[2].Spec.Rails = f.Nodes[2].Spec.Rails[:1]
	dead := &f.Nodes[3].Spec.Rails[0]
	dead.LinkState, dead.Switch, dead.SwitchPort = v1alpha1.LinkDown, nil, ""
	// A degraded link is the finding of a port without another; a GPU's is of no port.
	for _, i := range []int{3, 4} {
		spec := &f.Nodes[i].Spec
		spec.DegradedLinks = []v1alpha1.DegradedLink{{ID: spec.Rails[0].ID, What: "pcie-width"}, {ID: "GPU-1", What: "pcie-width"}}
	}
	s := portsOf(t, f)
	for _, tt := range []struct {
		name  string
		query snapshot.PortQuery
		want  []string
		ups   int
	}{
		{"who is on that port", snapshot.PortQuery{Switch: "leaf-g1-rail1-plane0", SwitchPort: "64"}, []string{
			"node000001 rail 1 on leaf-g1-rail1-plane0 64, miscabled, expected leaf-g0-rail1-plane0",
		}, 0},
		{"who is on that switch, by another spelling of its ID, and who should be", snapshot.PortQuery{Switch: "0x" + f.Leaf(0, 1, 0).ID}, []string{
			"node000000 rail 1 on leaf-g0-rail1-plane0 1",
			"node000001 rail 1 on leaf-g1-rail1-plane0 64, miscabled, expected leaf-g0-rail1-plane0",
			"node000002 rail 1, missing, expected leaf-g0-rail1-plane0",
			"node000003 rail 1 on leaf-g0-rail1-plane0 4",
		}, 2},
		{"an uplink", snapshot.PortQuery{Switch: f.Leaf(0, 1, 0).ID, SwitchPort: "34"}, nil, 1},
		{"a group, and who else is on its leaves", snapshot.PortQuery{Kind: "leaf", Group: "leaf-g1-rail0-plane0"}, []string{
			"node000001 rail 1 on leaf-g1-rail1-plane0 64, miscabled, expected leaf-g0-rail1-plane0, foreign",
			"node000004 rail 0 on leaf-g1-rail0-plane0 1, degraded-link, expected ", "node000004 rail 1 on leaf-g1-rail1-plane0 1",
			"node000005 rail 0 on leaf-g1-rail0-plane0 2", "node000005 rail 1 on leaf-g1-rail1-plane0 2",
			"node000006 rail 0 on leaf-g1-rail0-plane0 3", "node000006 rail 1 on leaf-g1-rail1-plane0 3",
			"node000007 rail 0 on leaf-g1-rail0-plane0 4", "node000007 rail 1 on leaf-g1-rail1-plane0 4",
		}, 0},
	} {
		list, ok := s.Ports(tt.query)
		if !ok {
			t.Fatalf("%s: unknown", tt.name)
		}
		if diff := cmp.Diff(tt.want, lines(list)); diff != "" || len(list.Uplinks) != tt.ups {
			t.Errorf("%s: %d uplinks (-want +got):\n%s", tt.name, len(list.Uplinks), diff)
		}
	}
	if _, ok := s.Ports(snapshot.PortQuery{Group: "leaf-nowhere"}); ok {
		t.Error("an unknown group has ports")
	}
}

// However large a group is, the answer is bounded.
func TestPortsAreBounded(t *testing.T) {
	s := portsOf(t, fabrics.New(fabrics.Plan{Sizes: fabrics.Even(1024, 32), Rails: 8, Pod: 32}))
	list, ok := s.Ports(snapshot.PortQuery{Kind: "spine", Group: s.Tree.Child[0].Name})
	if !ok || len(list.Ports) != 4096 || list.Omitted != 4096 {
		t.Errorf("%v: %d ports, %d omitted", ok, len(list.Ports), list.Omitted)
	}
}
