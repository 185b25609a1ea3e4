//go:build e2e && linux

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/resource"

	"github.com/heddle-dev/heddle/test/cluster"
)

// stepSurgeRejected upgrades a release of before the state directory had a lock: who asks
// for a surge gets an error, and the default does without.
func stepSurgeRejected(t *testing.T, b *removable) {
	const waits = "heddle.dev/next-process-waits"
	upgrade := func(surge string) (string, error) {
		return b.installer.Helm(t.Context(), b.Cluster, "upgrade", b.release, "deploy/helm/heddle", "-n", suite,
			"--reuse-values", "--dry-run=server", "--set", "gpuDevice.maxSurge="+surge)
	}
	strategy := func() string {
		out, err := upgrade("auto")
		if err != nil {
			t.Fatal(err)
		}
		_, ds, _ := strings.Cut(out, "kind: DaemonSet\nmetadata:\n  name: "+b.plugin+"\n")
		_, ds, _ = strings.Cut(ds, "rollingUpdate:\n")
		ds, _, _ = strings.Cut(ds, "template:\n")
		return ds
	}
	if got := strategy(); !strings.Contains(got, "maxSurge: 1\n") || !strings.Contains(got, "maxUnavailable: 0\n") {
		t.Errorf("auto, of a version that is waited for:\n%s", got)
	}
	b.kubectl(t, "-n", suite, "annotate", "ds", b.plugin, waits+"-")
	defer b.kubectl(t, "-n", suite, "annotate", "ds", b.plugin, waits+"=true")
	if got := strategy(); strings.Contains(got, "maxSurge") || !strings.Contains(got, "maxUnavailable: 1\n") {
		t.Errorf("auto, of a version that is not waited for:\n%s", got)
	}
	out, err := upgrade("1")
	if err == nil || !strings.Contains(out+err.Error(), "gpuDevice.maxSurge: the "+b.plugin+" that runs does not let the next one wait") {
		t.Errorf("upgrade: %v\n%s\nwant an error", err, out)
	}
}

// stepFull upgrades the device plugin where nothing is left for a request: its second pod,
// of the highest priority, takes the place of no other.
func stepFull(t *testing.T, b *removable) {
	const filler = "filler"
	pods, err := b.client.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + b.Node()})
	if err != nil {
		t.Fatal(err)
	}
	left := b.bed.node(t, b.Node()).Status.Allocatable.DeepCopy()
	for i := range pods.Items {
		requests := resource.PodRequests(&pods.Items[i], resource.PodResourcesOptions{})
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			quantity := left[name]
			quantity.Sub(requests[name])
			left[name] = quantity
		}
	}
	b.applied(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  nodeSelector: {kubernetes.io/hostname: %s}
  containers:
  - {name: c, image: %q, resources: {requests: {cpu: %s, memory: %q}}}
`, filler, b.Node(), cluster.PauseImage, left.Cpu(), left.Memory()))
	t.Cleanup(func() { b.kubectlAfter(t, "delete", "pod", filler, "--ignore-not-found") })
	b.kubectl(t, "wait", "pod/"+filler, "--for=condition=Ready", "--timeout=3m")
	uid := func() string {
		return b.kubectl(t, "get", "pod", filler, "--ignore-not-found", "-o", "jsonpath={.metadata.uid} {.status.phase}")
	}
	before, old := uid(), b.pods(t, b.plugin)
	b.rolled(t, "upgrade", b.release, "deploy/helm/heddle", "--reuse-values", "--set", "gpuDevice.maxSurge=auto,gpuDevice.interval=11s")
	if after := uid(); after != before {
		t.Errorf("the pod that fills the node was %q and is %q", before, after)
	}
	if now := b.pods(t, b.plugin); len(old) != 1 || len(now) != 1 || now[0].UID == old[0].UID {
		t.Errorf("%d pods of the device plugin before and %d after, or it is the same", len(old), len(now))
	}
}
