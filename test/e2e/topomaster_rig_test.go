//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// startTopoMaster runs a heddle-topo-master on the host until the test ends, and waits until it is ready.
func (b *bed) startTopoMaster(t *testing.T, name string, port int, args ...string) {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", port)
	b.startDaemon(t, "heddle-topo-master", address, append([]string{
		"--kubeconfig", b.Kubeconfig(), "--listen", address, "--namespace", "default",
	}, args...), "POD_NAME="+name)
}

// startDaemon runs a program on the host until the test ends, and waits until it is ready at an address.
func (b *bed) startDaemon(t *testing.T, name, address string, args []string, env ...string) {
	t.Helper()
	binary, err := b.installer.Build(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the end of %s: %v", name, err)
		}
	})
	eventually(t, func() string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/readyz", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return "readyz answers " + resp.Status
		}
		return ""
	})
}

// reportOf is a NodeTopology of one InfiniBand port on a leaf.
func reportOf(node string, owner types.UID, leaf string) *v1alpha1.NodeTopology {
	return &v1alpha1.NodeTopology{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: node, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: node, UID: owner},
		}},
		Spec: v1alpha1.NodeTopologySpec{Rails: []v1alpha1.Rail{{
			HCA: "mlx5_0", ID: "0000:18:00.0", Role: "fabric", Port: 1, LinkState: v1alpha1.LinkActive,
			Switch: &v1alpha1.Switch{ID: leaf}, Source: v1alpha1.SourceIB, Confidence: 100,
		}}},
	}
}

// report applies NodeTopologies at once.
func (b *bed) report(t *testing.T, all ...*v1alpha1.NodeTopology) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": all})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Apply(t.Context(), string(text)); err != nil {
		t.Fatal(err)
	}
}
