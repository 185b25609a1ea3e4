package informers

import (
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
	"github.com/heddle-dev/heddle/topo/suspect"
)

const (
	cards = `{"version":1,"cards":[` +
		`{"uuid":"GPU-6","index":6,"memoryMiB":81559,"slots":16,"numa":0,"zone":1,"healthy":true,"policy":"fixed-share","taken":{"vcore":30,"memoryMiB":24576,"slots":1}},` +
		`{"uuid":"GPU-7","index":7,"memoryMiB":81559,"slots":16,"numa":0,"zone":1,"healthy":false,"reason":"XID 79","taken":{"vcore":0,"memoryMiB":0,"slots":0}}]}`
	bound = `{"version":1,"node":"n1","containers":{"main":{"shares":[{"uuid":"GPU-6","vcore":30,"memoryMiB":24576}],"policy":"fixed-share","by":"node","notEnforced":["memory"]}}}`
)

var created = metav1.Unix(1_700_000_000, 0)

// holder is a pod of a node that requests whole GPUs, with an annotation if there is a key.
func holder(namespace, name, node, gpus, key, value string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: created}}
	p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
	limits := corev1.ResourceList{"cpu": resource.MustParse("1")}
	if gpus != "" {
		limits["nvidia.com/gpu"] = resource.MustParse(gpus)
	}
	p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: limits}}}
	if key != "" {
		p.Annotations = map[string]string{key: value}
	}
	return p
}

// consumers asks an API server with two nodes. The first shares GPUs, one of them unhealthy.
func consumers(t *testing.T) (*Consumers, *apiserver.Server) {
	t.Helper()
	api := apiserver.New()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	core, err := CoreClient(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	n1 := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"pool": "a"}}}
	n1.Annotations = map[string]string{wellknown.SharedGPUs: cards, wellknown.CordonedGPUs: "GPU-5"}
	n1.Status.Conditions = []corev1.NodeCondition{{
		Type: wellknown.ConditionDevices, Status: corev1.ConditionFalse, LastTransitionTime: created,
		Message: "nvidia.com/sgpu: 1 unavailable: GPU7: XID 79",
	}}
	api.Put("nodes", n1)
	api.Put("nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", Labels: map[string]string{"pool": "b"}}})
	ended := holder("ai", "done", "n1", "8", wellknown.SGPUBound, bound)
	ended.Status.Phase = corev1.PodSucceeded
	for _, pod := range []*corev1.Pod{
		holder("b", "train", "n1", "4", "", ""), holder("a", "notebook", "n1", "", wellknown.SGPUBound, bound),
		ended,
		holder("a", "web", "n2", "", "", ""), holder("b", "forged", "n2", "", wellknown.SGPUBound, bound),
		holder("b", "other", "n2", "1", "", ""),
	} {
		api.Put("pods", pod)
	}
	return NewConsumers(core, []corev1.ResourceName{"nvidia.com/gpu"}), api
}

// The pods of a node are those that hold GPUs or shares of this node, and nothing else.
func TestUseOfANode(t *testing.T) {
	c, _ := consumers(t)
	gpus, err := allocation.ParseNodeGPUs(cards)
	if err != nil {
		t.Fatal(err)
	}
	want := &Use{
		Health: &corev1.NodeCondition{
			Type: "HeddleReady", Status: "False", LastTransitionTime: created, Message: "nvidia.com/sgpu: 1 unavailable: GPU7: XID 79",
		},
		Cordoned: []string{"GPU-5"}, Shared: gpus.GPUs,
		Pods: []Consumer{
			{Namespace: "a", Name: "notebook", Phase: "Running", Created: created, Shares: map[string]allocation.Sharing{
				"main": {
					Shares: []allocation.Share{{UUID: "GPU-6", VCore: 30, MemoryMiB: 24576}}, Policy: "fixed-share", By: "node",
					NotEnforced: []string{"memory"},
				},
			}},
			{Namespace: "b", Name: "train", Phase: "Running", Created: created, GPUs: 4},
		},
	}
	got, err := c.Of(t.Context(), "n1")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	want = &Use{Cordoned: []string{}, Pods: []Consumer{{Namespace: "b", Name: "other", Phase: "Running", Created: created, GPUs: 1}}}
	got, err = c.Of(t.Context(), "n2")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

func TestNodesByLabelsAndNamespace(t *testing.T) {
	c, api := consumers(t)
	for _, tt := range []struct {
		selector, namespace string
		want                []string
	}{
		{"pool=a", "", []string{"n1"}},
		{"pool in (a,b),!gone", "", []string{"n1", "n2"}},
		{"", "a", []string{"n1"}}, // web holds no GPU.
		{"", "b", []string{"n1", "n2"}},
		{"pool=b", "b", []string{"n2"}},
		{"pool=b", "a", []string{}},
		{"", "none", []string{}},
	} {
		selector, err := labels.Parse(tt.selector)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Nodes(t.Context(), selector, tt.namespace)
		slices.Sort(got)
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%q in %q: error %v (-want +got):\n%s", tt.selector, tt.namespace, err, diff)
		}
	}
	api.Down(true)
	if _, err := c.Nodes(t.Context(), labels.Everything(), "a"); err == nil {
		t.Error("no API server, and no error")
	}
}

// A node's shared GPUs are counted, and those with a consumer are in use.
func TestSharedGPUsOfANode(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{wellknown.SharedGPUs: cards}}}
	if n := (&nodeReader{suspects: suspect.NewMemory()}).read(node); n.Shared != 2 || n.SharedUsed != 1 {
		t.Errorf("%d shared GPUs, %d in use, want 2 and 1", n.Shared, n.SharedUsed)
	}
	node.Annotations[wellknown.SharedGPUs] = "{"
	if n := (&nodeReader{suspects: suspect.NewMemory()}).read(node); n.Shared != 0 || n.SharedUsed != 0 {
		t.Errorf("of an invalid annotation %d shared GPUs, %d in use", n.Shared, n.SharedUsed)
	}
}
