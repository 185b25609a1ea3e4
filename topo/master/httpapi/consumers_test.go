package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/test/simulation/apiserver"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/informers"
)

// Who has the GPUs of a node, and which nodes have labels or pods of a namespace.
func TestConsumers(t *testing.T) {
	api := apiserver.New()
	kube := httptest.NewServer(api)
	t.Cleanup(kube.Close)
	core, err := informers.CoreClient(&rest.Config{Host: kube.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	api.Put("nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"pool": "a"}}})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ai", Name: "train"}}
	pod.Spec.NodeName = "n1"
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")},
	}}}
	api.Put("pods", pod)
	f := newFixture(t, fabric.ModeSwitchbox)
	f.put("dragonfly-1", "n1")
	h := newServer(f, func(o *Options) {
		o.Consumers = informers.NewConsumers(core, []corev1.ResourceName{"nvidia.com/gpu"})
	}).Handler()
	for _, tt := range []struct {
		target string
		code   int
		words  string
	}{
		{"/v1/pods?node=n1", http.StatusOK, `"pods":[{"namespace":"ai","name":"train","phase":"","gpus":2}]`},
		{"/v1/pods?node=x", http.StatusNotFound, "ask for the ?node="},
		{"/v1/pods", http.StatusNotFound, "ask for the ?node="},
		{"/v1/nodes?label=pool%3Da", http.StatusOK, `{"nodes":["n1"]}`},
		{"/v1/nodes?label=pool!%3Da", http.StatusOK, `{"nodes":[]}`},
		{"/v1/nodes?namespace=ai", http.StatusOK, `{"nodes":["n1"]}`},
		{"/v1/nodes?namespace=zoo", http.StatusOK, `{"nodes":[]}`},
		{"/v1/nodes", http.StatusBadRequest, "ask for a ?label= selector"},
		{"/v1/nodes?label=pool%3D%3D%3Da", http.StatusBadRequest, "label: "},
		{"/v1/nodes?namespace=a/b", http.StatusBadRequest, `namespace: invalid name "a/b"`},
	} {
		w := ask(h, "GET", tt.target)
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.words) {
			t.Errorf("%s: %d %s, want %d with %q", tt.target, w.Code, w.Body, tt.code, tt.words)
		}
	}
	api.Down(true)
	for _, target := range []string{"/v1/pods?node=n1", "/v1/nodes?namespace=ai"} {
		if w := ask(h, "GET", target); w.Code != http.StatusInternalServerError {
			t.Errorf("no API server, %s: %d", target, w.Code)
		}
	}
}
