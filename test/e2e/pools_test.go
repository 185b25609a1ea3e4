//go:build e2e && linux

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/heddle-dev/heddle/test/cluster"
)

// stepNodePools applies deploy/examples/node-pools.yaml as it stands. The pods
// land on simulated nodes, which the same binary labeled.
func stepNodePools(t *testing.T, b *bed) {
	config := t.TempDir()
	write := func(usages string) {
		t.Helper()
		for name, text := range map[string]string{"version": "v1", "cluster-config": "preset: scheme\n", "nodes-config": usages} {
			if err := os.WriteFile(filepath.Join(config, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	const own = "- {nodeName: h20-training, usage: training}\n- {nodeName: h20-inference, usage: inference}\n"
	write(own + "- {nodeName: h20-hybrid, usage: hybrid}\n")
	// Every pod of the example takes one CPU.
	cpus := map[string]string{"h20-training": "3", "h20-inference": "3", "h20-hybrid": "8", "cpu-1": "64"}
	for node, machine := range map[string]string{
		"h20-training": "h20-4nic", "h20-inference": "h20-4nic", "h20-hybrid": "h20-4nic", "cpu-1": "amd-epyc-no-gpu",
	} {
		if err := b.AddSimulatedNode(t.Context(), cluster.SimulatedNode{Name: node, Capacity: map[string]string{"cpu": cpus[node]}}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.kubectlAfter(t, "delete", "node", node) })
		if err := b.WaitNodeReady(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		b.oneshot(t, "--node-name", node, "--machine", b.path("test/machines/"+machine+".json"), "--config", config)
	}
	b.kubectl(t, "apply", "-f", b.path("deploy/examples/node-pools.yaml"))
	t.Cleanup(func() {
		b.kubectlAfter(t, "delete", "--wait=false", "--ignore-not-found", "-f", b.path("deploy/examples/node-pools.yaml"))
	})
	b.kubectl(t, "run", "cpu-only", "--image=localhost/busybox:1", "--restart=Never", "--", "sleep", "60")
	t.Cleanup(func() { b.kubectlAfter(t, "delete", "--wait=false", "pod", "cpu-only") })
	where := func(selector string) string {
		return b.kubectl(t, "get", "pods", "-l", selector, "-o", "jsonpath={.items[*].spec.nodeName}")
	}
	for selector, want := range map[string]string{
		"batch.kubernetes.io/job-name=training-job": "h20-training",
		"app=inference": "h20-inference h20-inference",
		"run=cpu-only":  "cpu-1",
	} {
		eventually(t, func() string {
			if got := where(selector); got != want {
				return fmt.Sprintf("pods of %s are on %q, want %q", selector, got, want)
			}
			return ""
		})
	}
	b.spill(t)
	before := b.placed(t, metav1.NamespaceDefault, "")
	write(own + "- {nodeName: h20-hybrid, usage: training}\n")
	b.oneshot(t, "--node-name", "h20-hybrid", "--machine", b.path("test/machines/h20-4nic.json"), "--config", config)
	b.afterUsage(t, before)
}

// spill lets both purposes grow until their own nodes are full, and then the hybrid one. The
// training pods are those of the example's Job as a Deployment, since kwok ends a Job's.
func (b *bed) spill(t *testing.T) {
	t.Helper()
	b.trainingDeployment(t)
	b.kubectl(t, "delete", "job", "training-job")
	for _, tt := range []struct {
		training, inference string
		want                map[string]map[string]int
	}{
		{"2", "3", map[string]map[string]int{"training": {"h20-training": 2}, "inference": {"h20-inference": 3}}},
		{"5", "5", map[string]map[string]int{
			"training": {"h20-training": 3, "h20-hybrid": 2}, "inference": {"h20-inference": 3, "h20-hybrid": 2},
		}},
		{"9", "5", map[string]map[string]int{
			"training": {"h20-training": 3, "h20-hybrid": 6}, "inference": {"h20-inference": 3, "h20-hybrid": 2},
		}},
		// Four have no node: they go to none of the other purpose, nor to the one without GPUs.
		{"11", "7", map[string]map[string]int{
			"training": {"h20-training": 3, "h20-hybrid": 6, "": 2}, "inference": {"h20-inference": 3, "h20-hybrid": 2, "": 2},
		}},
	} {
		b.kubectl(t, "scale", "deploy", "training", "--replicas="+tt.training)
		b.kubectl(t, "scale", "deploy", "inference-deployment", "--replicas="+tt.inference)
		eventually(t, func() string {
			got := map[string]map[string]int{"training": b.perNode(t, "app=training-job"), "inference": b.perNode(t, "app=inference")}
			return cmp.Diff(tt.want, got)
		})
	}
}

func (b *bed) trainingDeployment(t *testing.T) {
	t.Helper()
	file, err := os.Open(b.path("deploy/examples/node-pools.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var job batchv1.Job
	if err := yaml.NewYAMLOrJSONDecoder(file, 4096).Decode(&job); err != nil || job.Name != "training-job" {
		t.Fatalf("the first document is %q: %v", job.Name, err)
	}
	template := job.Spec.Template
	template.Spec.RestartPolicy = corev1.RestartPolicyAlways
	none := int32(0)
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "training"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &none, Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template,
		},
	}
	if _, err := b.client.AppsV1().Deployments(metav1.NamespaceDefault).Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.kubectlAfter(t, "delete", "--wait=false", "deploy", "training") })
}

// afterUsage is what a change of hybrid to training does: nothing to the pods that run, and
// the node takes no more of the others.
func (b *bed) afterUsage(t *testing.T, before map[types.UID]string) {
	t.Helper()
	if got := b.node(t, "h20-hybrid").Labels["heddle.dev/node.usage"]; got != "training" {
		t.Fatalf("usage of the node that was hybrid: %q", got)
	}
	// The next placement on it is later than any eviction that the taint could cause.
	gone := strings.Fields(b.kubectl(t, "get", "pods", "-l", "app=inference", "--field-selector=spec.nodeName=h20-hybrid",
		"-o", "jsonpath={.items[*].metadata.name}"))
	if len(gone) != 2 {
		t.Fatalf("inference on the node that was hybrid: %v", gone)
	}
	uid := b.kubectl(t, "get", "pod", gone[0], "-o", "jsonpath={.metadata.uid}")
	b.kubectl(t, "delete", "pod", gone[0])
	eventually(t, func() string {
		got := map[string]map[string]int{"training": b.perNode(t, "app=training-job"), "inference": b.perNode(t, "app=inference")}
		return cmp.Diff(map[string]map[string]int{
			"training": {"h20-training": 3, "h20-hybrid": 7, "": 1}, "inference": {"h20-inference": 3, "h20-hybrid": 1, "": 3},
		}, got)
	})
	after := b.placed(t, metav1.NamespaceDefault, "")
	for _, id := range slices.Sorted(maps.Keys(before)) {
		if node := before[id]; node != "" && string(id) != uid && after[id] != node {
			t.Errorf("the pod %s on %s is now on %q", id, node, after[id])
		}
	}
}

// perNode counts pods by node; pods without one are those of "".
func (b *bed) perNode(t *testing.T, selector string) map[string]int {
	t.Helper()
	count := map[string]int{}
	for _, node := range b.placed(t, metav1.NamespaceDefault, selector) {
		count[node]++
	}
	return count
}

// placed are the nodes of pods that are not on their way out.
func (b *bed) placed(t *testing.T, namespace, selector string) map[types.UID]string {
	t.Helper()
	pods, err := b.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[types.UID]string{}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp == nil {
			nodes[p.UID] = p.Spec.NodeName
		}
	}
	return nodes
}
