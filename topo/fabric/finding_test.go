package fabric_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
)

func TestFindings(t *testing.T) {
	t.Parallel()
	sw := func(id string) fabric.Switch { return fabric.Switch{ID: id} }
	none := fabric.Switch{}
	crew := func(spec *v1alpha1.NodeTopologySpec) []fabric.Node {
		full := func() *v1alpha1.NodeTopologySpec { return onto("1", "2", "3", "4") }
		return []fabric.Node{node("a", full()), node("b", full()), node("c", full()), node("d", spec)}
	}
	at := func(kind fabric.Fault, rail int32, expected, found fabric.Switch) fabric.Finding {
		f := fabric.Finding{Kind: kind, Node: "d", Group: "1", Rail: rail, Expected: expected, Found: found}
		if kind != fabric.Missing {
			f.HCA, f.ID, f.Port = "mlx5_"+string('0'+rail), "0000:0"+string('0'+rail)+":00.0", 1
		}
		return f
	}
	down := report(cable{0, "1", 0, "", "", false, 0, ""}, cable{rail: 1, leaf: "2", down: true}, cable{rail: 2, down: true}, cable{rail: 3})
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
		{"an unknown leaf", crew(onto("1", "2", "x", "4")), []fabric.Finding{at(fabric.Miscabled, 2, sw("3"), sw("x"))}},
		{
			"three nodes, two of them show where the third's cable belongs",
			[]fabric.Node{node("a", onto("1", "2", "3")), node("b", onto("1", "2", "3")), node("d", onto("1", "x", "3"))},
			[]fabric.Finding{at(fabric.Miscabled, 1, sw("2"), sw("x"))},
		},
		{"two exchanged", crew(onto("1", "3", "2", "4")), []fabric.Finding{
			at(fabric.Miscabled, 1, sw("2"), sw("3")), at(fabric.Miscabled, 2, sw("3"), sw("2")),
		}},
		{"dead with and without memory of its switch, unseen", crew(down), []fabric.Finding{
			at(fabric.Dead, 1, sw("2"), sw("2")), at(fabric.Dead, 2, sw("3"), none), at(fabric.Unseen, 3, sw("4"), none),
		}},
		{"an HCA fell off the bus", crew(report(cable{rail: 0, leaf: "1"}, cable{rail: 2, leaf: "3"}, cable{rail: 3, leaf: "4"})), []fabric.Finding{
			at(fabric.Missing, 1, sw("2"), none),
		}},
		{"an HCA fell off the bus and the others moved up", crew(onto("1", "3", "4")), []fabric.Finding{at(fabric.Missing, 1, sw("2"), none)}},
		{"a node of another make lacks nothing", crew(func() *v1alpha1.NodeTopologySpec {
			spec := onto("1", "2")
			spec.Accelerators = []v1alpha1.Accelerator{{Product: "NVIDIA-L40S", Count: 4}}
			return spec
		}()), nil},
		{
			"a single node on another group's leaf",
			[]fabric.Node{node("a", onto("1", "2", "3")), node("b", onto("1", "2", "3")), node("d", onto("7", "2", "9"))},
			[]fabric.Finding{{
				Kind: fabric.Miscabled, Node: "d", Group: "7", HCA: "mlx5_1", ID: "0000:01:00.0", Port: 1, Rail: 1, Found: sw("2"),
			}},
		},
		{"rails that no node keeps to prove nothing", []fabric.Node{
			node("a", onto("1", "2", "1", "2")), node("b", onto("2", "1", "1", "2")),
			node("c", onto("1", "2", "2", "1")), node("d", onto("2", "1", "2", "1")),
		}, nil},
		{"two nodes with one GUID", []fabric.Node{node("a", twin.DeepCopy()), node("b", twin.DeepCopy()), node("d", onto("1", "2", "3", "4"))}, func() []fabric.Finding {
			var all []fabric.Finding
			for _, pair := range [][2]string{{"a", "b"}, {"b", "a"}} {
				for rail := range int32(4) {
					f := at(fabric.Duplicate, rail, none, sw(string('1'+rail)))
					f.Node, f.Other, f.Group = pair[0], pair[1], ""
					all = append(all, f)
				}
			}
			return all
		}()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, put(newMap(fabric.Preset(fabric.ModeAuto, 0)...), tt.nodes...).Findings()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A slot without a cable on most nodes of a shape is unused. One whose links went
// down is not, though all nodes have it so: its leaf has failed.
func TestUnusedSlots(t *testing.T) {
	t.Parallel()
	const uncabled, failed, forgotten, alone = "uncabled", "failed", "failed, its switch unknown", "down on one node"
	for _, tt := range []struct {
		how         string
		nodes, dead int
	}{
		{uncabled, 64, 0}, {uncabled, 2, 2}, {failed, 64, 64}, {forgotten, 64, 64}, {alone, 64, 1},
	} {
		t.Run(fmt.Sprintf("%s, %d nodes", tt.how, tt.nodes), func(t *testing.T) {
			t.Parallel()
			m := newMap(fabric.Preset(fabric.ModeAuto, 0)...)
			var s *fabric.Snapshot
			for n := range tt.nodes {
				spec := onto("1", "2", "3", "4")
				if r := &spec.Rails[3]; n > 0 || tt.how == failed || tt.how == forgotten || tt.nodes == 2 {
					switch {
					case tt.how == alone && n > 1:
					case tt.how == failed:
						r.LinkState = v1alpha1.LinkDown
					default:
						r.LinkState, r.Switch = v1alpha1.LinkDown, nil
					}
					if tt.how == forgotten {
						r.Since = new(metav1.NewTime(start))
					}
				}
				s = put(m, node(fmt.Sprintf("node-%d", n), spec))
			}
			dead := 0
			for _, f := range s.Findings() {
				if f.Kind != fabric.Dead {
					t.Errorf("%+v", f)
				}
				dead++
			}
			if dead != tt.dead {
				t.Errorf("%d dead ports, want %d", dead, tt.dead)
			}
		})
	}
}

// While a leaf is replaced, the nodes' reports change one by one: none is Degraded until they can agree.
func TestLeafIsReplaced(t *testing.T) {
	t.Parallel()
	m := newMap(fabric.Preset(fabric.ModeLeaf, 0)...)
	for i := range 8 {
		spec := onto("1", "2", "3", "4")
		if i < 6 {
			spec.Rails[2].Switch.ID, spec.Rails[2].Since = "9", new(metav1.NewTime(start.Add(-10*time.Second)))
		}
		m.Put(node(string(rune('a'+i)), spec))
	}
	s := m.Snapshot(start)
	if len(s.Findings()) != 2 || s.Nodes.Degraded != 0 {
		t.Errorf("%d findings and %+v while the leaf is replaced", len(s.Findings()), s.Nodes)
	}
	if s = m.Snapshot(start.Add(time.Minute)); s.Nodes.Degraded != 2 {
		t.Errorf("%+v a minute later", s.Nodes)
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
			m := newMap(fabric.Preset(fabric.ModeAuto, 0)...)
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
