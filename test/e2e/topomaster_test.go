//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// hyperNodeCRD is Volcano's, without its descriptions.
const hyperNodeCRD = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
  "metadata": {"name": "hypernodes.topology.volcano.sh"},
  "spec": {"group": "topology.volcano.sh", "scope": "Cluster",
    "names": {"plural": "hypernodes", "singular": "hypernode", "kind": "HyperNode", "listKind": "HyperNodeList"},
    "versions": [{"name": "v1alpha1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object",
      "properties": {"spec": {"type": "object", "properties": {"tier": {"type": "integer"}, "tierName": {"type": "string"},
        "members": {"type": "array", "items": {"type": "object", "required": ["selector", "type"], "properties": {
          "type": {"type": "string", "enum": ["Node", "HyperNode"]},
          "selector": {"type": "object", "properties": {
            "exactMatch": {"type": "object", "properties": {"name": {"type": "string"}}},
            "regexMatch": {"type": "object", "properties": {"pattern": {"type": "string"}}}}}}}}}}}}}}]}}`

// topoMaster is a running heddle-topo-master.
type topoMaster struct {
	*bed
	url     string
	stop    func()
	process *os.Process
}

func (b *bed) startTopoMaster(t *testing.T, name string, port int, args ...string) *topoMaster {
	t.Helper()
	binary, err := b.installer.Build(t.Context(), "heddle-topo-master")
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary, append([]string{
		"--kubeconfig", b.Kubeconfig(), "--listen", address, "--namespace", "default",
	}, args...)...)
	cmd.Env = append(os.Environ(), "POD_NAME="+name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m := &topoMaster{bed: b, url: "http://" + address, process: cmd.Process}
	stopped := false
	m.stop = func() {
		if stopped {
			return
		}
		stopped = true
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the end of %s: %v", name, err)
		}
	}
	t.Cleanup(m.stop)
	eventually(t, func() string {
		if code, _, _ := m.get(t, "/readyz"); code != http.StatusOK {
			return fmt.Sprint("readyz answers ", code)
		}
		return ""
	})
	return m
}

func (m *topoMaster) get(t *testing.T, path string) (code int, tag, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, m.url+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, "", err.Error()
	}
	return resp.StatusCode, resp.Header.Get("ETag"), string(b)
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

// TestTopoMaster runs two replicas on the real API server: they agree, one of
// them writes, a restart loses nothing, and what is ours goes when it is not
// wanted any more.
func TestTopoMaster(t *testing.T) {
	b := shared(t)
	b.topologyCRD(t)
	if err := b.Apply(t.Context(), hyperNodeCRD); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "wait", "crd/hypernodes.topology.volcano.sh", "--for=condition=Established", "--timeout=3m")
	const leafA, leafB = "b83fd20000000a01", "b83fd20000000b01"
	for node, leaf := range map[string]string{"topo-a1": leafA, "topo-a2": leafA, "topo-b1": leafB, "topo-b2": leafB} {
		b.newNode(t, node)
		b.kubectl(t, "patch", "node", node, "--subresource=status", "-p",
			`{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "test", "message": "test"}]}}`)
		b.report(t, reportOf(node, b.node(t, node).UID, leaf))
	}
	exports := []string{"--exports", "labels,hypernode"}
	one := b.startTopoMaster(t, "one", 19401, exports...)
	two := b.startTopoMaster(t, "two", 19402, exports...)

	const leaf = "heddle.dev/topology.leaf"
	label := func(node, want string) func() string {
		return func() string {
			if got := b.node(t, node).Labels[leaf]; got != want {
				return fmt.Sprintf("%s has %s=%q, want %q", node, leaf, got, want)
			}
			return ""
		}
	}
	eventually(t, label("topo-a1", "leaf-"+leafA))
	eventually(t, label("topo-b2", "leaf-"+leafB))
	for _, path := range []string{"/node_group", "/v1/topology"} {
		eventually(t, func() string {
			_, tagOne, bodyOne := one.get(t, path)
			_, tagTwo, bodyTwo := two.get(t, path)
			if tagOne != tagTwo || tagOne == "" {
				return "tags of " + path + ": " + tagOne + " and " + tagTwo
			}
			return cmp.Diff(bodyOne, bodyTwo)
		})
	}
	// One worker walks each leaf; the heartbeat beside it is the worker's.
	walks := func() string {
		t.Helper()
		return b.kubectl(t, "get", "nt", "-o", `jsonpath={range .items[*]}{.status.walk}{end}`)
	}
	eventually(t, func() string {
		if got := walks(); strings.Count(got, leafA) != 1 || strings.Count(got, leafB) != 1 {
			return "walks: " + got
		}
		return ""
	})
	b.kubectl(t, "wait", "--for=create", "hypernode/leaf-"+leafA, "--timeout=3m")
	if got := b.kubectl(t, "get", "hypernode", "leaf-"+leafA, "-o", "jsonpath={.spec.members[*].selector.exactMatch.name}"); got != "topo-a1 topo-a2" {
		t.Errorf("members %q", got)
	}

	// The writer goes: the other follows. Names stay although the leaf is replaced under the nodes.
	_, before, _ := two.get(t, "/node_group")
	one.stop()
	const leafC = "a000000000000c01"
	// Both at once: one after the other they would be two groups for a while, and a new one takes its own name.
	b.report(t, reportOf("topo-a1", b.node(t, "topo-a1").UID, leafC), reportOf("topo-a2", b.node(t, "topo-a2").UID, leafC))
	eventually(t, func() string {
		_, _, body := two.get(t, "/v1/nodes/topo-a2")
		if !strings.Contains(body, leafC) {
			return "no report of the new leaf: " + body
		}
		return ""
	})
	if _, after, _ := two.get(t, "/node_group"); after != before {
		t.Errorf("the answer changed from %s to %s; its names should stay", before, after)
	}
	again := b.startTopoMaster(t, "again", 19401, exports...)
	if _, after, _ := again.get(t, "/node_group"); after != before {
		t.Errorf("after a restart %s, before %s", after, before)
	}
	eventually(t, func() string {
		if got := walks(); strings.Count(got, leafC) != 1 || strings.Contains(got, leafA) {
			return "walks after the leader changed: " + got
		}
		return ""
	})
	b.kubectl(t, "label", "node", "topo-b1", leaf+"-")
	eventually(t, label("topo-b1", "leaf-"+leafB))

	// What is not wanted any more is taken back.
	two.stop()
	again.stop()
	b.startTopoMaster(t, "last", 19402, "--exports", "none")
	eventually(t, label("topo-b2", ""))
	b.kubectl(t, "wait", "--for=delete", "hypernode/leaf-"+leafB, "--timeout=3m")
}
