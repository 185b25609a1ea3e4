package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
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
	slow := v1alpha1.DegradedLink{
		HCA: "mlx5_0", ID: "0000:18:00.0", Port: 1, What: "symbol-errors", Value: "3.1e-11 per bit", Limit: "1.0e-12 per bit",
		Source: "IBTA", Since: silent.Since,
	}
	far := slow
	far.End = v1alpha1.SwitchEnd
	narrow := v1alpha1.DegradedLink{
		ID: "GPU-1", Link: "NVLink 3", What: "nvlink-crc-errors", Value: "1000 per second", Limit: "100 per second",
		Source: "DCGM", Since: silent.Since,
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
		{"degraded", v1alpha1.NodeTopologySpec{Rails: []v1alpha1.Rail{cabled}, DegradedLinks: []v1alpha1.DegradedLink{slow, far, narrow}}, []string{
			"link of mlx5_0 port 1: is degraded since 2023-11-14T22:13:20Z: symbol-errors is 3.1e-11 per bit, " +
				"the limit is 1.0e-12 per bit (IBTA)",
			"link of mlx5_0 port 1, the switch's end: is degraded since 2023-11-14T22:13:20Z: symbol-errors is 3.1e-11 per bit, " +
				"the limit is 1.0e-12 per bit (IBTA)",
			"link of GPU GPU-1 NVLink 3: is degraded since 2023-11-14T22:13:20Z: nvlink-crc-errors is 1000 per second, " +
				"the limit is 100 per second (DCGM)",
		}, 3},
		{"silent", v1alpha1.NodeTopologySpec{Rails: []v1alpha1.Rail{cabled}, Stale: []v1alpha1.StaleSource{silent}}, []string{
			"source cluster-manager: is silent since 2023-11-14T22:13:20Z: it answers 503",
		}, 0},
	} {
		l := &Findings{}
		checkSources(l, &v1alpha1.NodeTopology{Spec: tt.spec})
		list, problems := l.sorted()
		var got []string
		for _, f := range list {
			got = append(got, strings.TrimSpace(f.Subject+": "+f.Message))
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || problems != tt.problems {
			t.Errorf("%s: %d problems (-want +got):\n%s", tt.name, problems, diff)
		}
	}
}

// The condition HeddleFabric names the cable.
func TestConditionOfTheFabric(t *testing.T) {
	const wrong = "mlx5_3 port 1 (rail 3) is on leaf-07 port 12, expected leaf-03"
	for status, want := range map[corev1.ConditionStatus]string{
		corev1.ConditionFalse: "problem  Node gpu-1\n  HeddleFabric: CableMisplaced: " + wrong + "\n  -> Correct the cable",
		corev1.ConditionTrue:  "", corev1.ConditionUnknown: "",
	} {
		n := h20Node()
		n.Status.Conditions = []corev1.NodeCondition{{
			Type: wellknown.ConditionFabric, Status: status, Reason: "CableMisplaced", Message: wrong,
		}}
		out, _ := doctor(t, "--node", "gpu-1", "--kubeconfig", serve(t, n, nil))
		if got := strings.Contains(out, wellknown.ConditionFabric); got != (want != "") || !strings.Contains(out, want) {
			t.Errorf("%s: no %q in\n%s", status, want, out)
		}
	}
}
