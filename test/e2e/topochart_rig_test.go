//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// pods are the pods of one of heddle's programs.
func (b *bed) pods(t *testing.T, app string) []corev1.Pod {
	t.Helper()
	list, err := b.client.CoreV1().Pods(suite).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + app})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// reportOf waits for the report of a node.
func (b *bed) reportOf(t *testing.T, node string) *v1alpha1.NodeTopology {
	t.Helper()
	b.kubectl(t, "wait", "--for=create", "nt/"+node, "--timeout=3m")
	nt := &v1alpha1.NodeTopology{}
	if err := json.Unmarshal([]byte(b.kubectl(t, "get", "nt", node, "-o", "json")), nt); err != nil {
		t.Fatal(err)
	}
	return nt
}

// ready is what a kubelet would write. Without one the control plane takes it back after 40 s.
func (b *bed) ready(t *testing.T, node string) {
	t.Helper()
	b.kubectl(t, "patch", "node", node, "--subresource=status", "-p",
		`{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "test", "message": "test"}]}}`)
}

// ask is a GET with the administrator's credentials.
func (b *bed) ask(t *testing.T, url string) (body, tag string) {
	t.Helper()
	client, err := rest.HTTPClientFor(b.config)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := client.Do(req)
	if err != nil {
		return err.Error(), ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error(), ""
	}
	return string(text), resp.Header.Get("ETag")
}

const leafLabel = "heddle.dev/topology.leaf"

func (b *bed) waitLeaf(t *testing.T, node, want string) {
	t.Helper()
	eventually(t, func() string {
		if got := b.node(t, node).Labels[leafLabel]; got != want {
			return fmt.Sprintf("%s of %s is %q, want %q", leafLabel, node, got, want)
		}
		return ""
	})
}
