//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/kube"
	"github.com/heddle-dev/heddle/topo/worker"
)

// topoNode is the replayed node that has a worker.
const topoNode = "topo-life"

// topologyCRD installs the chart's definition of NodeTopology.
func (b *bed) topologyCRD(t *testing.T) {
	t.Helper()
	const name = "topology.heddle.dev_nodetopologies.yaml"
	text, err := os.ReadFile(filepath.Join(b.installer.Root, "deploy/helm/heddle/crds", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Apply(t.Context(), string(text)); err != nil {
		t.Fatal(err)
	}
	b.kubectl(t, "wait", "crd/nodetopologies.topology.heddle.dev", "--for=condition=Established", "--timeout=30s")
}

func (b *bed) topology(t *testing.T) v1alpha1.NodeTopology {
	t.Helper()
	var nt v1alpha1.NodeTopology
	if err := json.Unmarshal([]byte(b.kubectl(t, "get", "nt", topoNode, "-o", "json")), &nt); err != nil {
		t.Fatal(err)
	}
	return nt
}

// startTopoWorker runs the worker of a replayed node and returns how to stop it.
func (b *bed) startTopoWorker(t *testing.T, machine, config string) (stop func()) {
	t.Helper()
	binary, err := b.installer.Build(t.Context(), nodeName)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary, "topo-worker", "--node-name", topoNode, "--machine", machine,
		"--config", config, "--kubeconfig", b.Kubeconfig(), "--interval", "1s", "--metrics-address", "", "--log-level", "info")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the worker's end: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// TestTopoWorkerPublishes runs a worker beside the API server: what it writes,
// when it writes, and what becomes of that.
func TestTopoWorkerPublishes(t *testing.T) {
	b := shared
	b.topologyCRD(t)
	const node = topoNode
	b.newNode(t, node, nil)
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		return file
	}
	place := func(group string) {
		write("topology.yaml", "version: v1\nnodes:\n  "+node+": {path: [switchbox-1, "+group+"], rails: {0: leaf-a}}\n")
	}
	place("dragonfly-2")
	write("config/version", "v1")
	write("config/cluster-config", "topology: {staticFile: "+filepath.Join(dir, "topology.yaml")+"}\n")
	dump, err := os.ReadFile(filepath.Join(b.installer.Root, "test/machines/h800-8ib-bond.json"))
	if err != nil {
		t.Fatal(err)
	}
	machine := write("machine.json", string(dump))
	stop := b.startTopoWorker(t, machine, filepath.Join(dir, "config"))
	await := func(path, want string) {
		t.Helper()
		b.kubectl(t, "wait", "nt/"+node, "--timeout=20s", "--for=jsonpath={"+path+"}="+want)
	}
	exists := func() {
		t.Helper()
		b.kubectl(t, "wait", "--for=create", "nt/"+node, "--timeout=20s")
	}
	exists()
	await(".spec.path[1]", "dragonfly-2")
	await(".spec.rails[0].switch.id", "leaf-a")
	nt := b.topology(t)
	want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: b.node(t, node).UID}}
	if diff := cmp.Diff(want, nt.OwnerReferences); diff != "" || len(nt.Spec.Rails) != 10 {
		t.Errorf("%d rails; owner (-want +got):\n%s", len(nt.Spec.Rails), diff)
	}
	if columns := b.kubectl(t, "get", "nt", node); !strings.Contains(columns, "NVIDIA-H800") {
		t.Errorf("columns:\n%s", columns)
	}
	await(".spec.accelerators[0].count", "8")
	if b.topology(t).Status.HeartbeatTime == nil {
		t.Error("no heartbeat")
	}

	// Idle passes write nothing.
	before := b.topology(t).ResourceVersion
	select {
	case <-t.Context().Done():
	case <-time.After(5 * time.Second):
	}
	if after := b.topology(t).ResourceVersion; after != before {
		t.Errorf("version %s became %s in idle passes", before, after)
	}

	// topo-master writes status.walk; the worker's writes leave it alone.
	b.kubectl(t, "patch", "nt", node, "--subresource=status", "--type=merge", "-p", `{"status":{"walk":["leaf-a"]}}`)
	place("dragonfly-3")
	await(".spec.path[1]", "dragonfly-3")
	await(".status.walk[0]", "leaf-a")
	write("machine.json", strings.Replace(string(dump), `"state": "ACTIVE"`, `"state": "DOWN"`, 1))
	await(".spec.rails[0].linkState", "Down")

	// A worker that comes back writes nothing if nothing changed, and again if
	// its object was deleted.
	stop()
	before = b.topology(t).ResourceVersion
	stop = b.startTopoWorker(t, machine, filepath.Join(dir, "config"))
	select {
	case <-t.Context().Done():
	case <-time.After(3 * time.Second):
	}
	if after := b.topology(t).ResourceVersion; after != before {
		t.Errorf("version %s became %s by a restart", before, after)
	}
	stop()
	b.kubectl(t, "delete", "nt", node)
	stop = b.startTopoWorker(t, machine, filepath.Join(dir, "config"))
	exists()
	stop()

	// The object goes with its Node, and a new Node of the name gets a new one.
	b.kubectl(t, "delete", "node", node)
	b.kubectl(t, "wait", "--for=delete", "nt/"+node, "--timeout=60s")
	b.kubectl(t, "create", "-f", write("node.json", `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "`+node+`"}}`))
	stop = b.startTopoWorker(t, machine, filepath.Join(dir, "config"))
	exists()
	if got := b.topology(t).OwnerReferences[0].UID; got != b.node(t, node).UID {
		t.Errorf("belongs to %s", got)
	}
	stop()
}

// TestFullestTopologyIsValid applies the largest report that a worker makes.
func TestFullestTopologyIsValid(t *testing.T) {
	b := shared
	b.topologyCRD(t)
	const node = "topo-full"
	b.newNode(t, node, nil)
	client, err := kube.NewClient(b.Kubeconfig(), "e2e")
	if err != nil {
		t.Fatal(err)
	}
	spec := v1alpha1.NodeTopologySpec{
		NVLinkDomain: strings.Repeat("d", 128), Path: []string{"a", "b", "c", "d", "e", "f", "g", "h"}, PathSource: v1alpha1.SourceStatic,
	}
	for i := range 16 {
		spec.Accelerators = append(spec.Accelerators, v1alpha1.Accelerator{Product: fmt.Sprint("gpu-", i), Count: 1024})
	}
	for i := range 128 {
		spec.Rails = append(spec.Rails, v1alpha1.Rail{
			Rail: int32(i), Plane: int32(i % 16), HCA: "mlx5", ID: fmt.Sprint("0000:", i), Role: "fabric", Port: 255,
			GPUs: strings.Split(strings.Repeat("GPU-87164236-ab4c-4ca6-9341-f921ac72ba79,", 16)[:16*41-1], ","), LinkState: v1alpha1.LinkActive,
			Switch:     &v1alpha1.Switch{ID: strings.Repeat("i", 128), Name: strings.Repeat("ä", 128)},
			SwitchPort: strings.Repeat("p", 128), Source: v1alpha1.SourceLLDP, Confidence: 100, RateGbps: 1600,
			Since: new(metav1.NewTime(time.Unix(1_700_000_000, 0).UTC())),
		})
	}
	for i := range 2048 {
		spec.Uplinks = append(spec.Uplinks, v1alpha1.Uplink{
			Leaf: "2c5eab0300c26480", Port: int32(i % 256), Peer: "2c5eab0300c26280", PeerName: strings.Repeat("n", 64), PeerPort: 1,
		})
	}
	for i := range 64 {
		spec.Skipped = append(spec.Skipped, v1alpha1.Skipped{Name: fmt.Sprint(i), Reason: strings.Repeat("r", 256)})
	}
	p := worker.NewPublisher(client, node)
	if nt, err := p.Load(t.Context()); nt != nil || err != nil {
		t.Errorf("before: %v, %v", nt, err)
	}
	if nt, err := p.Beat(t.Context(), time.Now()); nt != nil || err != nil {
		t.Errorf("heartbeat of nothing: %v, %v", nt, err)
	}
	owner, err := p.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nt, err := p.Apply(t.Context(), owner.UID, &spec)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(spec, nt.Spec); diff != "" {
		t.Errorf("stored (-sent +got):\n%s", diff)
	}
	// What is no longer applied goes away.
	nt, err = p.Apply(t.Context(), owner.UID, &v1alpha1.NodeTopologySpec{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v1alpha1.NodeTopologySpec{}, nt.Spec, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("emptied (-sent +got):\n%s", diff)
	}
}
