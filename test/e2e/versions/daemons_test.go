//go:build e2e && linux

package versions

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/test/install"
	"github.com/heddle-dev/heddle/test/kubelet"
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

// The first versions with claims, and with counters, shares and taints of devices.
const firstClaims, firstCounters = "1.34", "1.36"

// claims runs the DRA driver beside a kubelet in memory: it publishes what the API server knows, and its token writes
// the slices of its own node alone.
func (w *world) claims(installer *install.Installer, version string) {
	w.t.Helper()
	if version < firstClaims {
		return
	}
	const name = "claims"
	w.node(name, corev1.ResourceList{}, nil)
	dir, config := kubelet.Dir(w.t), w.t.TempDir()
	kubelet.Start(w.t, dir)
	for path, text := range map[string]string{
		filepath.Join(config, "version"): "v1", filepath.Join(config, "cluster-config"): "mode: claims\n",
		filepath.Join(dir, "plugins_registry", "none"): "",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	token := w.podToken("heddle-device-plugin", name)
	dump, nodes := filepath.Join(installer.Root, "test/machines/dgx-h100.json"), w.t.TempDir()
	if err := install.DeviceNodes(dump, nodes); err != nil {
		w.t.Fatal(err)
	}
	run(w.t, filepath.Join(installer.Dir, "heddle-node"), "device-plugin", "--node-name="+name, "--metrics-address=",
		"--machine="+dump, "--kubeconfig="+w.kubeconfig(w.t, token),
		"--kubelet-dir="+dir, "--claims-dir="+filepath.Join(dir, "plugins", claims.Driver), "--config="+config,
		"--state-dir="+w.t.TempDir(), "--cdi-dir="+w.t.TempDir(), "--dev-root="+nodes)
	pairs := 0
	if version >= firstCounters {
		pairs = 8
	}
	eventually(w.t, func() string {
		list, err := w.client.ResourceV1().ResourceSlices().List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		published := map[claims.Type]int{}
		for i := range list.Items {
			for _, d := range list.Items[i].Spec.Devices {
				if of, _, _ := strings.Cut(d.Name, "-"); list.Items[i].Spec.Driver == claims.Driver {
					published[claims.Type(of)]++
				}
			}
		}
		if published[claims.GPU] != 8 || published[claims.Pair] != pairs || published[claims.HCA] == 0 {
			return fmt.Sprintf("devices are published: %v, want 8 GPUs and %d pairs", published, pairs)
		}
		return ""
	})
	stolen := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "stolen"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: claims.Driver, NodeName: new("dgx"), Pool: resourcev1.ResourcePool{Name: "dgx", ResourceSliceCount: 1},
	}}
	own, err := clientcmd.BuildConfigFromFlags("", w.kubeconfig(w.t, token))
	if err != nil {
		w.t.Fatal(err)
	}
	_, err = kubernetes.NewForConfigOrDie(own).ResourceV1().ResourceSlices().Create(w.t.Context(), stolen, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may write only the ResourceSlices of the node") {
		w.t.Errorf("a slice of another node: %v", err)
	}
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
