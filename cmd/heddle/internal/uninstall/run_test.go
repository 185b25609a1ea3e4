package uninstall

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/internal/kube"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
)

// fake is an API server with one Node, whose kubelet keeps the resources of a
// plugin that has ended for some writes more.
type fake struct {
	*apiserver.Server
	t    *testing.T
	keep int
}

func (c *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.Server.ServeHTTP(w, r)
	if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/status") && c.keep > 0 {
		c.keep--
		node := c.node()
		node.Status.Capacity["nvidia.com/gpu"] = quantities(map[corev1.ResourceName]int64{"g": 8})["g"]
		node.Status.Allocatable["nvidia.com/gpu"] = quantities(map[corev1.ResourceName]int64{"g": 0})["g"]
		c.Put("nodes", node)
	}
}

func (c *fake) node() *corev1.Node {
	c.t.Helper()
	node := &corev1.Node{}
	if !c.Read("nodes", "", "gpu-1", node) {
		c.t.Fatal("the Node is gone")
	}
	return node
}

// run runs a phase; half is how long the first one waits for kubelets.
func (c *fake) run(phase string, half time.Duration, force bool) error {
	c.t.Helper()
	server := httptest.NewServer(c)
	defer server.Close()
	client, err := kube.ClientFor(&rest.Config{Host: server.URL, QPS: -1}, "test")
	if err != nil {
		c.t.Fatal(err)
	}
	u := &uninstall{
		options: options{namespace: "heddle-system", phase: phase, force: force},
		api:     api{client}, out: io.Discard, every: time.Millisecond, absence: 20 * time.Millisecond, half: half,
	}
	return u.run(c.t.Context())
}

func newCluster(t *testing.T, keep int) *fake {
	t.Helper()
	c := &fake{Server: apiserver.New(), t: t, keep: keep}
	c.Put("nodes", &corev1.Node{
		TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "gpu-1", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"heddle.dev/free-gpus": "[]", "x": "y"},
		},
		Status: corev1.NodeStatus{
			Capacity:    quantities(map[corev1.ResourceName]int64{"cpu": 8, "nvidia.com/gpu": 8}),
			Allocatable: quantities(map[corev1.ResourceName]int64{"cpu": 8, "nvidia.com/gpu": 0}),
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: "HeddleReady", Status: corev1.ConditionTrue},
			},
		},
	})
	return c
}

// clean checks that the Node is as before heddle.
func (c *fake) clean() {
	c.t.Helper()
	node := c.node()
	want := []any{map[string]string{"a": "b"}, map[string]string{"x": "y"}, []corev1.ResourceName{"cpu"}, []corev1.ResourceName{"cpu"}, 1}
	got := []any{node.Labels, node.Annotations, names(node.Status.Capacity), names(node.Status.Allocatable), len(node.Status.Conditions)}
	if diff := cmp.Diff(want, got); diff != "" {
		c.t.Errorf("the Node (-want +got):\n%s", diff)
	}
}

func names(list corev1.ResourceList) (all []corev1.ResourceName) {
	for name := range list {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// A kubelet that writes a resource again has it taken away again, until it forgets it.
func TestKubeletsKeepResources(t *testing.T) {
	c := newCluster(t, 3)
	if err := c.run("", time.Hour, false); err != nil {
		t.Fatal(err)
	}
	c.clean()
}

// The first hook ends without an error when its half of the time is over, and notes
// in the Node what the second one still has to take away.
func TestTheSecondHookGoesOn(t *testing.T) {
	c := newCluster(t, 1000)
	if err := c.run(phaseNodes, 50*time.Millisecond, false); err != nil {
		t.Fatal(err)
	}
	if got := c.node().Annotations["heddle.dev/uninstalled-resources"]; got != "nvidia.com/gpu" {
		t.Errorf("noted: %q", got)
	}
	c.keep = 2
	if err := c.run(phaseCapacity, 0, false); err != nil {
		t.Fatal(err)
	}
	c.clean()
	// And there is nothing to do for a third.
	if err := c.run("", time.Hour, false); err != nil {
		t.Fatal(err)
	}
	c.clean()
}

func TestFailsWhilePodsHaveDevices(t *testing.T) {
	c := newCluster(t, 0)
	c.Put("pods", &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "train", Namespace: "ai", Annotations: map[string]string{"heddle.dev/sgpu-bound": "{}"}},
		Spec:       corev1.PodSpec{NodeName: "gpu-1"},
	})
	if err := c.run("", 0, false); err == nil || !strings.Contains(err.Error(), "ai/train") {
		t.Errorf("error %v, want one that names the pod", err)
	}
	if c.node().Annotations["heddle.dev/free-gpus"] == "" {
		t.Error("it failed, and has begun")
	}
	if err := c.run("", 0, true); err != nil {
		t.Error("with force: ", err)
	}
	c.clean()
}

// A cluster of more than one page is read whole.
func TestPages(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if query.Get("limit") != "500" || query.Get("labelSelector") != "a in (b,c)" {
			t.Errorf("asked for %s", r.URL)
		}
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		name := "second"
		if query.Get("continue") == "" {
			name, list.Continue = "first", "next"
		}
		list.Items = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: name}}}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}))
	defer server.Close()
	client, err := kube.ClientFor(&rest.Config{Host: server.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	err = api{client}.pods(t.Context(), "", "a in (b,c)", func(pod *corev1.Pod) { got = append(got, pod.Name) })
	if err != nil || !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("error %v, pods %q", err, got)
	}
}
