package status

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/test/clitest"
)

// run asks an API server with one DaemonSet of three pods and one Deployment of two.
func run(t *testing.T, set appsv1.DaemonSetStatus) (string, error) {
	t.Helper()
	set.DesiredNumberScheduled = 3
	answers := map[string]any{
		"/apis/apps/v1/namespaces/gpu/daemonsets": appsv1.DaemonSetList{Items: []appsv1.DaemonSet{
			{ObjectMeta: metav1.ObjectMeta{Name: "heddle-device-plugin", Generation: 2}, Status: set},
		}},
		"/apis/apps/v1/namespaces/gpu/deployments": appsv1.DeploymentList{Items: []appsv1.Deployment{{
			ObjectMeta: metav1.ObjectMeta{Name: "heddle-topo-master"}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))},
			Status: appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2},
		}}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := answers[r.URL.Path]
		if answer == nil {
			answer = appsv1.DaemonSetList{}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	config := clitest.Kubeconfig(t, server.URL)
	out, _, err := clitest.Run(t, NewCommand(), "--kubeconfig", config, "-n", "gpu")
	return out, err
}

func TestStatus(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  appsv1.DaemonSetStatus
		row  string
		err  error
	}{
		{
			"all well",
			appsv1.DaemonSetStatus{ObservedGeneration: 2, UpdatedNumberScheduled: 3, NumberReady: 3},
			"heddle-device-plugin  DaemonSet   3       3        3\n", nil,
		},
		{
			"one not ready",
			appsv1.DaemonSetStatus{ObservedGeneration: 2, UpdatedNumberScheduled: 3, NumberReady: 2},
			"heddle-device-plugin  DaemonSet   3       3        2\n", cli.ErrFindings,
		},
		{
			"an update that has not begun",
			appsv1.DaemonSetStatus{ObservedGeneration: 1, UpdatedNumberScheduled: 3, NumberReady: 3},
			"heddle-device-plugin  DaemonSet   3       0        3\n", cli.ErrFindings,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := run(t, tt.set)
			if !errors.Is(err, tt.err) || !strings.Contains(out, tt.row) || !strings.Contains(out, "heddle-topo-master    Deployment  2       2        2\n") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
