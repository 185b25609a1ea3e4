//go:build e2e && linux

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/test/cluster"
)

const (
	drainedName   = "drained"
	cordonedByGPU = `jsonpath={.metadata.annotations.heddle\.dev/cordoned-gpus}`
)

// stepDrained is `heddle drain` of one GPU and then of the node, and the way back. The pod of a
// Deployment leaves, and its successor goes to another GPU, or waits; a pod without a
// controller stays.
func stepDrained(t *testing.T, b *removable) {
	cli := b.laptop(t)
	var tolerations []string
	for _, taint := range b.bed.node(t, b.Node()).Spec.Taints {
		tolerations = append(tolerations, fmt.Sprintf("{key: %q, operator: Exists}", taint.Key))
	}
	b.applied(t, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: default}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {kubernetes.io/hostname: %[2]s}
      tolerations: [%[3]s]
      containers:
      - {name: main, image: %[4]q, resources: {limits: {nvidia.com/sgpu: 1, nvidia.com/vcore: 20, nvidia.com/vmemory: 8}}}
`, drainedName, b.Node(), strings.Join(tolerations, ", "), cluster.PauseImage))
	t.Cleanup(func() {
		b.kubectlAfter(t, "delete", "deployment", drainedName, "--ignore-not-found", "--cascade=foreground")
	})
	b.kubectl(t, "wait", "deployment/"+drainedName, "--for=condition=Available", "--timeout=3m")
	first, gpu := b.onGPU(t, cli)
	sharers := "No pod has GPU " + gpu
	if slices.Contains(strings.Fields(b.holds(t, cli, "default/"+sharer)), gpu) {
		sharers = "These pods still have GPU " + gpu
	}

	out, _ := cli.run(t, "drain", b.Node(), "--gpu", gpu, "--timeout", "60s")
	for _, want := range []string{"GPU " + gpu + " of node " + b.Node() + " is cordoned", "default/" + first + ": evicted\n", sharers} {
		if !strings.Contains(out, want) {
			t.Errorf("drain of a GPU: no %q in\n%s", want, out)
		}
	}
	if got := b.kubectl(t, "get", "node", b.Node(), "-o", cordonedByGPU); got != gpu {
		t.Errorf("cordoned are %q, want %q", got, gpu)
	}
	b.kubectl(t, "wait", "deployment/"+drainedName, "--for=condition=Available", "--timeout=3m")
	second, other := b.onGPU(t, cli)
	if second == first || other == gpu {
		t.Errorf("%s was on %s, and its successor %s is on %s", first, gpu, second, other)
	}

	out, code := cli.run(t, "drain", b.Node(), "--timeout", "60s")
	for _, want := range []string{
		"Node " + b.Node() + " is cordoned", "default/" + second + ": evicted\n", "These pods still have devices", "default/" + sharer,
	} {
		if !strings.Contains(out, want) || code != 1 {
			t.Errorf("drain of the node: exit %d, no %q in\n%s", code, want, out)
		}
	}
	if !b.bed.node(t, b.Node()).Spec.Unschedulable {
		t.Error("the node is not cordoned")
	}
	eventually(t, func() string {
		got := b.kubectl(t, "get", "pods", "-l", "app="+drainedName, "-o", "jsonpath={.items[*].status.phase}")
		if got != "Pending" {
			return "pods of the Deployment on a drained node: " + got
		}
		return ""
	})

	b.kubectl(t, "uncordon", b.Node())
	if out, code := cli.run(t, "gpu", "uncordon", b.Node(), gpu); code != 0 || !strings.Contains(out, "is allocated again") {
		t.Errorf("uncordon of the GPU: exit %d\n%s", code, out)
	}
	if got := b.kubectl(t, "get", "node", b.Node(), "-o", cordonedByGPU+"{.spec.unschedulable}"); got != "" {
		t.Errorf("left of the drain is %q", got)
	}
	b.kubectl(t, "wait", "deployment/"+drainedName, "--for=condition=Available", "--timeout=3m")
	b.kubectl(t, "delete", "deployment", drainedName, "--cascade=foreground", "--timeout=3m")
}

// holds is the line about a pod that has a GPU, by the beginning of its name, in what a
// drain would do.
func (b *bed) holds(t *testing.T, cli laptop, name string) (line string) {
	t.Helper()
	eventually(t, func() string {
		out, _ := cli.run(t, "drain", b.Node(), "--dry-run")
		for line = range strings.Lines(out) {
			if strings.HasPrefix(line, name) && strings.Contains(line, " GPU-") {
				return ""
			}
		}
		return "no pod " + name + " in\n" + out
	})
	return line
}

// onGPU is the Deployment's pod, and the GPU that it has.
func (b *bed) onGPU(t *testing.T, cli laptop) (pod, gpu string) {
	t.Helper()
	words := strings.Fields(b.holds(t, cli, "default/"+drainedName))
	if len(words) != 3 || words[2] != "yes" {
		t.Fatalf("the Deployment's pod: %q", words)
	}
	return strings.TrimPrefix(words[0], "default/"), words[1]
}
