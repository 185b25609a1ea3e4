package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/finding"
)

func TestSourcesAreExplained(t *testing.T) {
	rail := v1alpha1.Rail{HCA: "mlx5_0", Role: "fabric", Port: 1, LinkState: v1alpha1.LinkActive}
	cabled := rail
	cabled.Switch = &v1alpha1.Switch{ID: "leaf-a"}
	quiet := v1alpha1.Skipped{Name: "mlx5_0 port 1", Reason: "no LLDP frame"}
	other := v1alpha1.Skipped{Name: "mlx5_1 port 1", Reason: "no LLDP frame"}
	silent := v1alpha1.StaleSource{
		Source: v1alpha1.SourceClusterManager, Since: metav1.NewTime(time.Unix(1_700_000_000, 0)), Reason: "it answers 503",
	}
	for _, tt := range []struct {
		name     string
		spec     v1alpha1.NodeTopologySpec
		want     []string
		problems int
	}{
		{"all is known", v1alpha1.NodeTopologySpec{Rails: []v1alpha1.Rail{cabled}}, nil, 0},
		{"no frames", v1alpha1.NodeTopologySpec{Rails: []v1alpha1.Rail{rail}, Skipped: []v1alpha1.Skipped{quiet, other}}, []string{
			"heddle-topo-worker: knows the switch behind none of the node's active ports: the node is in no group",
			"heddle-topo-worker: mlx5_0 port 1, mlx5_1 port 1: no LLDP frame",
		}, 1},
		{"silent", v1alpha1.NodeTopologySpec{Rails: []v1alpha1.Rail{cabled}, Stale: []v1alpha1.StaleSource{silent}}, []string{
			"source cluster-manager: is silent since 2023-11-14T22:13:20Z: it answers 503",
		}, 0},
	} {
		l := &finding.List{}
		checkSources(l, &v1alpha1.NodeTopology{Spec: tt.spec})
		list, problems := l.Sorted()
		var got []string
		for _, f := range list {
			got = append(got, strings.TrimSpace(f.Subject+": "+f.Message))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || problems != tt.problems {
			t.Errorf("%s: %d problems (-want +got):\n%s", tt.name, problems, diff)
		}
	}
}
