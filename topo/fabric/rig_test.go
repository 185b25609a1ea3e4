package fabric_test

import (
	"strings"
	"time"

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
	// name is what the leaf calls itself.
	name string
}

func report(cables ...cable) *v1alpha1.NodeTopologySpec {
	spec := &v1alpha1.NodeTopologySpec{Accelerators: []v1alpha1.Accelerator{{Product: "NVIDIA-H20", Count: 8}}}
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
			r.Switch = &v1alpha1.Switch{ID: c.leaf, Name: c.name}
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
	return fabric.Node{Name: name, Ready: true, Report: read(spec), Heartbeat: start, Names: names}
}

func put(m *fabric.Builder, all ...fabric.Node) *fabric.Snapshot {
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

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func input(n *fabrics.Node) fabric.Node {
	return fabric.Node{Name: n.Name, Ready: true, Report: read(&n.Spec), Heartbeat: start}
}

func read(spec *v1alpha1.NodeTopologySpec) *fabric.Report {
	if spec == nil {
		return nil
	}
	return fabric.Read(spec)
}

func inputs(f *fabrics.Fabric) []fabric.Node {
	nodes := make([]fabric.Node, len(f.Nodes))
	for i := range f.Nodes {
		nodes[i] = input(&f.Nodes[i])
	}
	return nodes
}

func newMap(levels ...fabric.Level) *fabric.Builder {
	return fabric.New(levels)
}

func mapOf(mode fabric.Mode, f *fabrics.Fabric) *fabric.Builder {
	m := newMap(fabric.Preset(mode, 0)...)
	m.Put(inputs(f)...)
	return m
}

// groups is which nodes are together at the lowest level.
func groups(s *fabric.Snapshot) map[string]string {
	out := map[string]string{}
	for holders, e := range s.All() {
		if e.Kind == "node" {
			out[e.Name] = ""
			if len(holders) > 0 {
				out[e.Name] = holders[len(holders)-1].Name
			}
		}
	}
	return out
}

// treeOf is what GET /node_group answers, as values.
func treeOf(list []*fabric.Element) []v1alpha1.Group {
	out := make([]v1alpha1.Group, len(list))
	for i, e := range list {
		out[i] = v1alpha1.Group{Name: e.Name, Kind: e.Kind, Status: e.Status}
		if e.Kind != v1alpha1.KindNode {
			out[i].Child = treeOf(e.Child)
		}
	}
	return out
}
