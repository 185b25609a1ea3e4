package doctor

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/heddle-dev/heddle/api/wellknown"
)

func pod(namespace, name string, change func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if change != nil {
		change(&p)
	}
	return p
}

func owned(kind, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, Controller: new(true)}}
	}
}

func tolerating(t corev1.Toleration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{t} }
}

// serve is an API server with one Node, its pods and those on other Nodes; it
// returns a kubeconfig.
func serve(t *testing.T, node *corev1.Node, pods []corev1.Pod, elsewhere ...corev1.Pod) string {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(v); err != nil {
			t.Error(err)
		}
	}
	mux.HandleFunc("GET /api/v1/nodes/"+node.Name, func(w http.ResponseWriter, _ *http.Request) {
		node.APIVersion, node.Kind = "v1", "Node"
		answer(w, node)
	})
	mux.HandleFunc("GET /api/v1/pods", func(w http.ResponseWriter, r *http.Request) {
		list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: pods}
		switch q := r.URL.Query(); {
		case q.Get("labelSelector") != "":
			selector, err := labels.Parse(q.Get("labelSelector"))
			if err != nil {
				t.Error(err)
				return
			}
			list.Items = slices.DeleteFunc(slices.Concat(elsewhere, pods), func(p corev1.Pod) bool {
				return !selector.Matches(labels.Set(p.Labels))
			})
		case q.Get("fieldSelector") != "spec.nodeName="+node.Name:
			t.Errorf("listed pods by %v", q)
		}
		answer(w, list)
	})
	mux.HandleFunc("GET /api/v1/namespaces/heddle-system/configmaps/{name}", func(w http.ResponseWriter, r *http.Request) {
		text, ok := map[string]string{"heddle-scheduler": schedulerConfig, "mine": mineConfig, "broken": "profiles: 3"}[r.PathValue("name")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		answer(w, &corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{"scheduler.yaml": text},
		})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: " + server.URL + "}}]\n" +
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func h20Node() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:   "gpu-1",
		Labels: map[string]string{"nvidia.com/gpu.product": "NVIDIA-H20", "nvidia.com/gpu.count": "8", wellknown.RDMACount: "4"},
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: wellknown.FieldManager, Operation: metav1.ManagedFieldsOperationApply,
		}},
	}}
}

func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
