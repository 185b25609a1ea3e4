//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/test/sysfstest"
)

const (
	topoWorkerName = "heddle-topo-worker"
	topoMasterName = "heddle-topo-master"
)

// topoValues are the values of the first installation: the worker reads the
// real node, which has no HCA.
const topoValues = `
gpuLabel: {enabled: false}
gpuDevice: {enabled: false}
topoDiscovery:
  enabled: true
  worker:
    affinity: &real
      nodeAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms:
          - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node1]}]
  master:
    affinity: *real
`

// topoChart is the chart as it is installed, and where its Service answers on
// the host.
type topoChart struct {
	*bed
	release, address string
}

// TestTopologyFromTheChart is the life of topo-worker and topo-master on a real
// node, step by step; each step stands on those before.
func TestTopologyFromTheChart(t *testing.T) {
	b := &topoChart{bed: shared(t)}
	if err := b.installer.Image(t.Context(), b.Cluster, nodeName, topoMasterName); err != nil {
		t.Fatal(err)
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(topoValues), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.installer.Chart(t.Context(), b.Cluster, "--values", values); err != nil {
		t.Error(err)
		for _, what := range []string{"ds/" + topoWorkerName, "deploy/" + topoMasterName} {
			out, _ := b.Kubectl(t.Context(), "-n", suite, "describe", what)
			log, _ := b.Kubectl(t.Context(), "-n", suite, "logs", what, "--tail=40")
			t.Logf("%s\n%s", out, log)
		}
		t.FailNow()
	}
	b.release = strings.TrimSpace(b.helm(t, "list", "-n", suite, "-q"))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := b.installer.Helm(ctx, b.Cluster, "uninstall", b.release, "-n", suite, "--wait", "--no-hooks")
		if err != nil {
			t.Error(err)
		}
	})
	for _, node := range []string{"chart-a", "chart-b"} {
		b.newNode(t, node)
	}
	for _, step := range []struct {
		name string
		run  func(*testing.T, *topoChart)
	}{
		{"a privileged worker without InfiniBand is ready", stepPrivileged},
		{"both replicas answer alike, at the Service's address and through the API server", stepAnswers},
		{"the master labels Nodes under its policy", stepGroupLabels},
		{"without InfiniBand NET_RAW alone listens for LLDP", stepEthernet},
	} {
		if !t.Run(tt(step.name), func(t *testing.T) { step.run(t, b) }) {
			return
		}
	}
}

func stepPrivileged(t *testing.T, b *topoChart) {
	pods := b.pods(t, topoWorkerName)
	if len(pods) != 1 || !*pods[0].Spec.Containers[0].SecurityContext.Privileged || pods[0].Status.ContainerStatuses[0].RestartCount != 0 {
		t.Fatalf("pods of the worker: %+v", pods)
	}
	nt := b.reportOf(t, b.Node())
	if len(nt.Spec.Rails) != 0 || nt.OwnerReferences[0].UID != b.node(t, b.Node()).UID {
		t.Errorf("the report of a node without HCAs: %+v", nt)
	}
}

func stepAnswers(t *testing.T, b *topoChart) {
	const leaf = "b83fd20000000c01"
	for _, node := range []string{"chart-a", "chart-b"} {
		b.ready(t, node)
		b.report(t, reportOf(node, b.node(t, node).UID, leaf))
	}
	want := fmt.Sprintf(`{"name":"leaf-%s","kind":"leaf","child":[{"name":"chart-a",`, leaf)
	var err error
	if b.address, err = b.Expose(t.Context(), suite, topoMasterName, 0); err != nil {
		t.Fatal(err)
	}
	service := strings.TrimSpace(b.kubectl(t, "-n", suite, "get", "svc", topoMasterName, "-o", "jsonpath={.spec.clusterIP}"))
	pods := b.pods(t, topoMasterName)
	if len(pods) != 2 {
		t.Fatalf("%d replicas, want 2", len(pods))
	}
	eventually(t, func() string {
		body, err := b.NodeExec(t.Context(), "busybox", "wget", "-qO-", "http://"+service+":9001/node_group")
		if err != nil || !strings.Contains(body, want) {
			return fmt.Sprintf("at the Service's address: %v, %s", err, body)
		}
		tags := map[string]int{}
		for _, url := range []string{
			"http://" + b.address, b.config.Host + "/api/v1/namespaces/" + suite + "/pods/" + pods[0].Name + ":9001/proxy",
			b.config.Host + "/api/v1/namespaces/" + suite + "/pods/" + pods[1].Name + ":9001/proxy",
		} {
			got, tag := b.ask(t, url+"/node_group")
			if got != body {
				return cmp.Diff(body, got)
			}
			tags[tag]++
		}
		if len(tags) != 1 || tags[""] > 0 {
			return fmt.Sprintf("tags %v", tags)
		}
		return ""
	})
	b.commandsAnswer(t, want)
	cli := b.laptop(t)
	if out, code := cli.run(t, "topo"); code != 0 || !strings.Contains(out, "\nleaf-"+leaf+" ") || !strings.Contains(out, b.Node()) {
		t.Errorf("heddle topo: exit %d\n%s", code, out)
	}
	if out, code := cli.run(t, "topo", "miscabled"); code != 0 || out != "Every cable is where it belongs.\n" {
		t.Errorf("heddle topo miscabled: exit %d\n%s", code, out)
	}
}

func stepGroupLabels(t *testing.T, b *topoChart) {
	b.waitLeaf(t, "chart-a", "leaf-b83fd20000000c01")
	b.waitLeaf(t, "chart-b", "leaf-b83fd20000000c01")
	// One of the two walks the leaf, if it is Ready still.
	b.ready(t, "chart-a")
	b.ready(t, "chart-b")
	eventually(t, func() string {
		if got := b.kubectl(t, "get", "nt", "chart-a", "chart-b", "-o", `jsonpath={.items[*].status.walk}`); got != `["b83fd20000000c01"]` {
			return "walks: " + got
		}
		return ""
	})
}

// stepEthernet gives the unprivileged worker a machine with one RoCE port.
func stepEthernet(t *testing.T, b *topoChart) {
	dir := filepath.Join(b.Dir(), "ethernet")
	tree := sysfstest.At(t, dir)
	sysfstest.DGXH100(tree)
	// The machine's RoCE port, to listen on.
	const port = "busybox ip link add ens1f0np0 type veth; busybox ip link set ens1f0np0 up"
	if _, err := b.NodeExec(t.Context(), "sh", "-ec", port); err != nil {
		t.Fatal(err)
	}
	b.helm(t, "upgrade", b.release, "deploy/helm/heddle", "-n", suite, "--reuse-values", "--wait", "--timeout", "2m",
		"--set", "topoDiscovery.worker.infiniband=false,driver.access=runtime")
	patch := `[{"op": "add", "path": "/spec/template/spec/volumes/-", "value": {"name": "fixture", "hostPath": {"path": "` + dir + `"}}},
		{"op": "add", "path": "/spec/template/spec/containers/0/volumeMounts/-", "value": {"name": "fixture", "mountPath": "/fixture", "readOnly": true}},
		{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--sysfs-root=/fixture/sys"},
		{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--proc-root=/fixture/proc"}]`
	b.kubectl(t, "-n", suite, "patch", "ds", topoWorkerName, "--type=json", "-p", patch)
	b.kubectl(t, "-n", suite, "rollout", "status", "ds/"+topoWorkerName, "--timeout=3m")
	// A new object's first heartbeat comes an hour later, or with the next worker.
	b.kubectl(t, "wait", "nt/"+b.Node(), "--for=jsonpath={.status.heartbeatTime}", "--timeout=3m")
	pods := b.pods(t, topoWorkerName)
	s := pods[0].Spec.Containers[0].SecurityContext
	if s.Privileged != nil || !slices.Equal(s.Capabilities.Add, []corev1.Capability{"NET_RAW"}) || *s.AllowPrivilegeEscalation {
		t.Fatalf("security context: %+v", s)
	}
	// No frame has come; but the source listens on it, else it would be skipped with the reason, as the eight
	// InfiniBand ports are.
	eventually(t, func() string {
		spec := b.reportOf(t, b.Node()).Spec
		if len(spec.Rails) != 9 || len(spec.Skipped) != 8 || spec.Skipped[0].Reason != "open umad0: no such file or directory" {
			return fmt.Sprintf("%d rails, skipped: %+v", len(spec.Rails), spec.Skipped)
		}
		return ""
	})
}
