package snapshot_test

import (
	"testing"
	"unique"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

func TestCables(t *testing.T) {
	leaf := []*fabric.Element{{Name: "spine-1", Kind: "spine"}, {Name: "leaf-a", Kind: "leaf"}, {Name: "nvlink-x", Kind: "nvlink"}}
	rail := func(role, at string) v1alpha1.Rail {
		r := v1alpha1.Rail{HCA: "mlx5_0", ID: "0000:18:00.0", Role: role, Port: 1, LinkState: v1alpha1.LinkActive}
		if at != "" {
			r.Switch = &v1alpha1.Switch{ID: at}
		}
		return r
	}
	read := func(rails ...v1alpha1.Rail) *informers.Report {
		return &informers.Report{Report: fabric.Read(&v1alpha1.NodeTopologySpec{Rails: rails})}
	}
	dead := func(rail int32) fabric.Finding {
		return fabric.Finding{Kind: fabric.Dead, HCA: "mlx5_0", Port: 1, Rail: rail}
	}
	for _, tt := range []struct {
		name     string
		holders  []*fabric.Element
		findings []fabric.Finding
		report   *informers.Report
		want     informers.CablesSummary
		listed   int
	}{
		{name: "no report", holders: leaf},
		{name: "no fabric", report: read(rail("storage", "a1")), want: informers.CablesSummary{Rails: "0/0"}},
		{
			name: "as expected, under the leaf whatever is below it", holders: leaf, report: read(rail("fabric", "a1"), rail("storage", "a1")),
			want: informers.CablesSummary{Leaf: "leaf-a", Rails: "1/1", Condition: informers.Condition{
				Status: "True", Reason: "AsExpected", Message: "every known cable ends where it is expected",
			}},
		},
		{
			name: "no switch known: unseen ports are not faults", report: read(rail("fabric", "")), findings: []fabric.Finding{{Kind: fabric.Unseen}},
			want: informers.CablesSummary{Rails: "0/1", Condition: informers.Condition{
				Status: "Unknown", Reason: "SwitchesUnknown", Message: "no switch behind the node's fabric ports is known",
			}},
		},
		{
			name: "groups of a file", holders: leaf[:1], report: read(),
			want: informers.CablesSummary{Leaf: "spine-1", Rails: "0/0", Condition: informers.Condition{
				Status: "True", Reason: "AsExpected", Message: "every known cable ends where it is expected",
			}},
		},
		{
			name: "more than a person reads", holders: leaf, report: read(rail("fabric", "a1")),
			findings: []fabric.Finding{dead(0), dead(1), dead(2), dead(3), dead(4)}, listed: 5,
			want: informers.CablesSummary{Leaf: "leaf-a", Rails: "1/1", Findings: 5, Condition: informers.Condition{
				Status: "False", Reason: "LinkDown", Message: "mlx5_0 port 1 (rail 0) has no active link; " +
					"mlx5_0 port 1 (rail 1) has no active link; mlx5_0 port 1 (rail 2) has no active link; and 2 more",
			}},
		},
	} {
		got := snapshot.Cables(tt.holders, &fabric.Element{Findings: tt.findings}, tt.report)
		if diff := cmp.Diff(tt.want, got.Summary.Value()); diff != "" || len(got.Findings) != tt.listed {
			t.Errorf("%s: %d findings (-want +got):\n%s", tt.name, len(got.Findings), diff)
		}
		if again := snapshot.Cables(tt.holders, &fabric.Element{Findings: tt.findings}, tt.report); !again.Equal(got) || got.Summary != unique.Make(tt.want) {
			t.Errorf("%s: it differs from itself", tt.name)
		}
	}
}
