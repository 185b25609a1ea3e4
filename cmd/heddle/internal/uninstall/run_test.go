package uninstall

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/internal/kube"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
)

func clientOf(t *testing.T, handler http.Handler) rest.Interface {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client, err := kube.ClientFor(&rest.Config{Host: server.URL, QPS: -1}, "test")
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// It fails while a pod has devices, before anything is written; with --force the Node is as before heddle.
func TestRun(t *testing.T) {
	api := apiserver.New()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "gpu-1", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"heddle.dev/free-gpus": "[]", "x": "y"},
	}}
	node.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: "HeddleReady", Status: corev1.ConditionTrue},
	}
	api.Put("nodes", node)
	api.Put("pods", &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "train", Namespace: "ai", Annotations: map[string]string{"heddle.dev/sgpu-bound": "{}"}},
		Spec:       corev1.PodSpec{NodeName: "gpu-1"},
	})
	u := &uninstall{namespace: "heddle-system", client: clientOf(t, api), out: io.Discard}
	if err := u.run(t.Context()); err == nil || !strings.Contains(err.Error(), "ai/train") {
		t.Errorf("error %v, want one that names the pod", err)
	}
	if api.Read("nodes", "", "gpu-1", node); node.Annotations["heddle.dev/free-gpus"] == "" {
		t.Error("it failed, and has begun")
	}
	u.force = true
	if err := u.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	node = &corev1.Node{}
	api.Read("nodes", "", "gpu-1", node)
	got := []any{node.Labels, node.Annotations, len(node.Status.Conditions)}
	if diff := cmp.Diff([]any{map[string]string{"a": "b"}, map[string]string{"x": "y"}, 1}, got); diff != "" {
		t.Errorf("the Node (-want +got):\n%s", diff)
	}
}

// Pods with claims of heddle's driver are named: without the driver they would never end.
func TestClaimants(t *testing.T) {
	claim := func(name, driver string, pods ...string) string {
		users := make([]string, len(pods))
		for i, pod := range pods {
			users[i] = `{"resource":"pods","name":"` + pod + `","uid":"u"}`
		}
		return `{"metadata":{"namespace":"ml","name":"` + name + `"},"status":{"allocation":{"devices":{"results":[` +
			`{"request":"r","driver":"` + driver + `","pool":"n","device":"d"}]}},"reservedFor":[` + strings.Join(users, ",") + `]}}`
	}
	list := `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaimList","items":[` + strings.Join([]string{
		claim("ours", "devices.heddle.dev", "b", "a"), claim("also", "devices.heddle.dev", "a"),
		claim("theirs", "gpu.nvidia.com", "x"), `{"metadata":{"namespace":"ml","name":"waits"}}`,
	}, ",") + `]}`
	for status, want := range map[int][]string{http.StatusOK: {"ml/a", "ml/b"}, http.StatusNotFound: nil, http.StatusForbidden: nil} {
		u := &uninstall{client: clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			if status != http.StatusOK {
				_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":`+strconv.Itoa(status)+`}`)
				return
			}
			_, _ = io.WriteString(w, list)
		}))}
		got, err := u.claimants(t.Context())
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("status %d: %v (-want +got):\n%s", status, err, diff)
		}
	}
}
