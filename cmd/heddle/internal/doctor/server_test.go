package doctor

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/clitest"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
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
	api := apiserver.New(apiserver.Kind{APIVersion: "v1", Name: "ConfigMap", Plural: "configmaps"})
	api.Put("nodes", node)
	for i := range pods {
		p := pods[i].DeepCopy()
		p.Spec.NodeName = node.Name
		api.Put("pods", p)
	}
	for i := range elsewhere {
		api.Put("pods", &elsewhere[i])
	}
	for name, text := range map[string]string{"heddle-scheduler": schedulerConfig, "mine": mineConfig, "broken": "profiles: 3"} {
		api.Put("configmaps", &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "heddle-system", Name: name}, Data: map[string]string{"scheduler.yaml": text},
		})
	}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	return clitest.Kubeconfig(t, server.URL)
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
