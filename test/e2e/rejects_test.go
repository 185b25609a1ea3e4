//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

// rejectsValues let no probe through before the test asks for one.
const rejectsValues = `
config: {cluster: {health: {probeAfter: 1h}}}
gpuLabel:
  machineConfigMap: rejects
  affinity: &real
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node1]}]
gpuDevice: {machineConfigMap: rejects, affinity: *real}
uninstall: {affinity: *real}
`

// conflicting is a CDI spec that another program leaves behind. The container runtime finds every GPU of heddle's spec
// twice, and injects neither; heddle's own files, the machine and its driver are as they were.
const conflicting = "/run/cdi/conflicting.json"

// TestNodeThatRejectsPods: three pods fail for a fault that discovery does not see, and the node is withdrawn. The
// fourth waits for it. Once the fault is mended, it is the probe, and the node is back.
func TestNodeThatRejectsPods(t *testing.T) {
	b := ownBed(t, cluster.Options{Name: "e2e-rejects"})
	release := b.installRejects(t)
	eventually(t, func() string {
		if got := b.node(t, b.Node()).Status.Allocatable[gpu]; got.Value() != 8 {
			return fmt.Sprintf("allocatable %s is %s", gpu, got.String())
		}
		return ""
	})
	b.waitLabel(t, "nvidia.com/gpu.count", "8")
	// Of 20 nodes with GPUs, two may be withdrawn; one is.
	for i := range 19 {
		b.newNode(t, fmt.Sprint("other-", i))
		b.kubectl(t, "label", "node", fmt.Sprint("other-", i), "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3")
		b.kubectl(t, "cordon", fmt.Sprint("other-", i))
	}
	b.kubectl(t, "-n", suite, "patch", "configmap", "heddle-withdrawn-nodes", "-p",
		`{"data": {"other-0": "`+time.Now().Add(24*time.Hour).UTC().Format(time.RFC3339)+`"}}`)
	b.create(t, "before")
	b.kubectl(t, "wait", "pod/before", "--for=condition=Ready", "--timeout="+patience.String())
	running := b.containerOf(t, "before")

	if _, err := b.NodeExec(t.Context(), "sh", "-euc",
		`for f in /run/cdi/*.json /run/cdi/*.yaml; do case $(cat $f 2>/dev/null) in *driver.heddle.dev*) cp $f `+conflicting+`;; esac; done
		test -s `+conflicting); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		b.create(t, fmt.Sprint("fails-", i))
		b.waitCondition(t, "pod fails-"+fmt.Sprint(i), func() bool {
			return strings.Contains(b.kubectl(t, "get", "pod", fmt.Sprint("fails-", i), "-o",
				"jsonpath={.status.containerStatuses[*].state.waiting.reason}"), "CreateContainerError")
		})
	}
	b.rejects(t, "Withdrawn", corev1.ConditionTrue, true, 0)
	b.create(t, "fourth")
	var why string
	b.waitCondition(t, "a reason of pod fourth", func() bool {
		why, _ = b.laptop(t).run(t, "why", "fourth")
		return strings.Contains(why, "taint "+wellknown.RejectsPods)
	})
	t.Log(why)
	if doctor, code := b.laptop(t).run(t, "doctor", "--node", b.Node()); code != 1 || !strings.Contains(doctor, "CDI") {
		t.Errorf("doctor answers %d:\n%s", code, doctor)
	}
	b.oneEvent(t, wellknown.EventWithdrawn)
	if entry := b.kubectl(t, "-n", suite, "get", "configmap", "heddle-withdrawn-nodes", "-o", "jsonpath={.data."+b.Node()+"}"); entry == "" {
		t.Error("the node is not in the list of withdrawn nodes")
	}
	// Neither a restart of the plugin nor what runs is touched.
	b.kubectl(t, "-n", suite, "rollout", "restart", "ds/"+pluginName)
	b.kubectl(t, "-n", suite, "rollout", "status", "ds/"+pluginName, "--timeout="+patience.String())
	b.rejects(t, "Withdrawn", corev1.ConditionTrue, true, 0)
	b.oneEvent(t, wellknown.EventWithdrawn)
	if diff := cmp.Diff(running, b.containerOf(t, "before")); diff != "" {
		t.Errorf("a running container (-before +after):\n%s", diff)
	}

	// The fault is mended, its pods are deleted, and the time of the probe is there.
	b.kubectl(t, "delete", "pod", "fails-0", "fails-1", "fails-2", "--now")
	if _, err := b.NodeExec(t.Context(), "rm", conflicting); err != nil {
		t.Fatal(err)
	}
	if phase := b.kubectl(t, "get", "pod", "fourth", "-o", "jsonpath={.status.phase} {.spec.nodeName}"); phase != "Pending " {
		t.Errorf("pod fourth is %q before the probe", phase)
	}
	b.helm(t, "upgrade", release, "deploy/helm/heddle", "-n", suite, "--reuse-values", "--set", "config.cluster.health.probeAfter=1s")
	b.kubectl(t, "wait", "pod/fourth", "--for=condition=Ready", "--timeout="+patience.String())
	b.rejects(t, "PodsStart", corev1.ConditionFalse, false, 8)
	b.oneEvent(t, wellknown.EventReturned)
}

// installRejects returns the name of the release.
func (b *bed) installRejects(t *testing.T) string {
	t.Helper()
	ctx := t.Context()
	if err := b.installer.Image(ctx, b.Cluster, "heddle", nodeName); err != nil {
		t.Fatal(err)
	}
	dump, nodes := b.path("test/machines/dgx-h100.json"), filepath.Join(b.Dir(), "rejects-devices")
	if err := install.DeviceNodes(dump, nodes); err != nil {
		t.Fatal(err)
	}
	if _, err := b.NodeExec(ctx, "mkdir", "-p", "/run/cdi"); err != nil {
		t.Fatal(err)
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte(rejectsValues), 0o600); err != nil {
		t.Fatal(err)
	}
	b.applied(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+suite+"}}")
	b.kubectl(t, "-n", suite, "create", "configmap", "rejects", "--from-file=machine.json="+dump)
	if err := b.installer.Chart(ctx, b.Cluster, "--values", values, "--set", "gpuDevice.replayDevices="+nodes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, args := range [][]string{
				{"-n", suite, "logs", "ds/" + pluginName, "--tail=40"},
				{"get", "pods", "-o", "yaml"},
				{"describe", "node", b.Node()},
				{"-n", suite, "get", "configmap", "heddle-withdrawn-nodes", "-o", "yaml"},
			} {
				out, err := b.Kubectl(context.WithoutCancel(ctx), args...)
				t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
			}
		}
	})
	return strings.TrimSpace(b.helm(t, "list", "-n", suite, "-q"))
}

// create adds a pod with a GPU, for the cluster's own scheduler.
func (b *bed) create(t *testing.T, name string) {
	t.Helper()
	b.applied(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: default}, spec: {
		terminationGracePeriodSeconds: 0, containers: [{name: main, image: %q, command: [sleep, infinity],
		resources: {limits: {%s: 1}}}]}}`, name, cluster.BusyboxImage, gpu))
}

func (b *bed) containerOf(t *testing.T, pod string) string {
	t.Helper()
	return b.kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[*].containerID} {.status.containerStatuses[*].restartCount}")
}

func (b *bed) waitCondition(t *testing.T, what string, holds func() bool) {
	t.Helper()
	eventually(t, func() string {
		if holds() {
			return ""
		}
		return "not yet: " + what
	})
}

// rejects waits until the Node has the condition and the taint, or not, and so many GPUs.
func (b *bed) rejects(t *testing.T, reason string, status corev1.ConditionStatus, tainted bool, gpus int64) {
	t.Helper()
	eventually(t, func() string {
		n, shows := b.node(t, b.Node()), ""
		for _, c := range n.Status.Conditions {
			if c.Type == wellknown.ConditionRejects {
				shows = fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
			}
		}
		taint := false
		for _, have := range n.Spec.Taints {
			taint = taint || have.Key == wellknown.RejectsPods && have.Effect == corev1.TaintEffectNoSchedule
		}
		q := n.Status.Allocatable[gpu]
		if !strings.HasPrefix(shows, string(status)+" "+reason+":") || taint != tainted || q.Value() != gpus {
			return fmt.Sprintf("condition %q, tainted %t, %d GPUs", shows, taint, q.Value())
		}
		t.Log(shows)
		return ""
	})
}

// oneEvent waits until the Node has an Event of a reason, and checks that it was recorded once.
func (b *bed) oneEvent(t *testing.T, reason string) {
	t.Helper()
	eventually(t, func() string {
		all, err := b.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case len(all.Items) == 0:
			return "no Event " + reason
		case len(all.Items) > 1 || all.Items[0].Count != 1:
			t.Fatalf("more than one Event %s: %v", reason, all.Items)
		}
		t.Log(all.Items[0].Message)
		return ""
	})
}
