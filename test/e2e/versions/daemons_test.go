//go:build e2e && linux

package versions

import (
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/test/install"
)

// daemons run on a node of a recorded machine, each with a token of its pod, as the
// chart's admission policies ask for, and topo-master shows what they wrote.
func (w *world) daemons(installer *install.Installer) {
	w.t.Helper()
	const name = "dgx"
	w.node(name, corev1.ResourceList{}, nil)
	for _, daemon := range []string{"feature-discovery", "topo-worker"} {
		run(w.t, filepath.Join(installer.Dir, "heddle-node"), daemon, "--node-name="+name, "--metrics-address=",
			"--machine="+filepath.Join(installer.Root, "test/machines/dgx-h100.json"), "--kubeconfig="+w.kubeconfig(w.t, w.podToken("heddle-"+daemon, name)))
	}
	eventually(w.t, func() string {
		n, err := w.client.CoreV1().Nodes().Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if got := n.Labels["nvidia.com/gpu.count"]; got != "8" {
			return fmt.Sprintf("label nvidia.com/gpu.count is %q, want 8", got)
		}
		path := "/apis/topology.heddle.dev/v1alpha1/nodetopologies/" + name
		if _, err := w.client.Discovery().RESTClient().Get().AbsPath(path).DoRaw(w.t.Context()); err != nil {
			return fmt.Sprintf("NodeTopology of %s: %v", name, err)
		}
		return ""
	})
	address := "127.0.0.1:" + freePorts(w.t, 1)[0]
	run(w.t, filepath.Join(installer.Dir, "heddle-topo-master"), "--namespace="+namespace, "--listen="+address,
		"--kubeconfig="+w.kubeconfig(w.t, w.podToken("heddle-topo-master", name)))
	eventually(w.t, func() string { return ready(w.t, "http://"+address+"/readyz") })
}

func ready(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return url + ": " + resp.Status
	}
	return ""
}

// podToken makes a pod of that account on a node, and asks for its token.
func (w *world) podToken(account, node string) string {
	w.t.Helper()
	pod, err := w.client.CoreV1().Pods(namespace).Create(w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: account, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	token, err := w.client.CoreV1().ServiceAccounts(namespace).CreateToken(w.t.Context(), account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return token.Status.Token
}
