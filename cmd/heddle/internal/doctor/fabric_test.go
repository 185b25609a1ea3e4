package doctor

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/checks"
	"github.com/heddle-dev/heddle/internal/kube"
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
		l := &checks.List{}
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

// The client knows core/v1 alone, and reads the report all the same.
func TestReadTopology(t *testing.T) {
	want := &v1alpha1.NodeTopology{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}, Spec: v1alpha1.NodeTopologySpec{
		Rails: []v1alpha1.Rail{{HCA: "mlx5_0", Role: "fabric", Port: 1, LinkState: v1alpha1.LinkActive}},
	}}
	for _, tt := range []struct {
		code   int
		answer any
		want   *v1alpha1.NodeTopology
		err    string
	}{
		{http.StatusOK, &v1alpha1.NodeTopology{
			TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: v1alpha1.Kind}, ObjectMeta: want.ObjectMeta, Spec: want.Spec,
		}, want, ""},
		{http.StatusNotFound, nil, nil, ""},
		{http.StatusForbidden, nil, nil, ""},
		{http.StatusUnauthorized, nil, nil, "read NodeTopology gpu-1: "},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/apis/topology.heddle.dev/v1alpha1/nodetopologies/gpu-1" {
				t.Errorf("asked for %s", r.URL)
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(tt.code)
			_ = json.NewEncoder(w).Encode(tt.answer)
		}))
		client, err := kube.ClientFor(&rest.Config{Host: server.URL}, "test")
		if err != nil {
			t.Fatal(err)
		}
		got, err := readTopology(t.Context(), client, "gpu-1")
		server.Close()
		if diff := cmp.Diff(tt.want, got); diff != "" || (err == nil) != (tt.err == "") || err != nil && !strings.HasPrefix(err.Error(), tt.err) {
			t.Errorf("%d: error %v (-want +got):\n%s", tt.code, err, diff)
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
