package topo

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heddle-dev/heddle/test/golden"
	"github.com/heddle-dev/heddle/topo/explain"
	"github.com/heddle-dev/heddle/topo/manifest"
)

// asked is a Job whose pods are a gang of eight GPUs each.
func asked(pods int, more string) string {
	return fmt.Sprintf(`apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: %d
  completions: %[1]d
  template:
    metadata: {annotations: {heddle.dev/gang: "true"%s}}
    spec:
      containers: [{name: main, resources: {limits: {nvidia.com/gpu: 8, cpu: 4}}}]
`, pods, more)
}

// TestPlan compares the words with testdata/plan.txt.
func TestPlanNamesItsKinds(t *testing.T) {
	for _, kind := range manifest.Kinds() {
		if !regexp.MustCompile(`\b` + kind + `\b`).MatchString(NewPlanCommand().Long) {
			t.Errorf("the command's help lacks %s", kind)
		}
	}
}

func TestPlan(t *testing.T) {
	var got strings.Builder
	leaf := `, heddle.dev/gang-required-level: leaf`
	for _, tt := range []struct {
		title, text string
		cluster     *whyCluster
		change      func(*whyCluster)
		fits        bool
	}{
		{"it fits", asked(2, leaf), newWhyCluster(2, 1), nil, true},
		{"two of two gangs fit, one in each leaf", asked(2, leaf) + "---\n" + strings.ReplaceAll(asked(1, leaf), "train", "next"), newWhyCluster(2, 1), nil, true},
		{"the second gang finds the room taken", asked(2, leaf) + "---\n" + strings.ReplaceAll(asked(2, leaf), "train", "next"), newWhyCluster(2, 1), nil, false},
		{"it fits when another gang ends", asked(4, leaf), newWhyCluster(2, 1), nil, false},
		{"it waits for gangs without an expected end, and others wait too", asked(3, leaf), newWhyCluster(1, 1), func(w *whyCluster) {
			for i := range w.Pods {
				w.Pods[i].Annotations = nil
			}
			w.add("single", 1, 8, nil)
		}, false},
		{"one of two nodes is kept for repair", asked(2, leaf), newWhyCluster(2, 1), func(w *whyCluster) {
			w.Spares = intstr.Parse("1")
		}, false},
		{"no leaf holds it", asked(6, leaf), newWhyCluster(4, 4), nil, false},
		{"no node has such GPUs", strings.ReplaceAll(asked(1, ""), "nvidia.com/gpu", "amd.com/gpu"), newWhyCluster(4, 4), nil, false},
		{"a Deployment and a Service", `apiVersion: apps/v1
kind: Deployment
metadata: {name: serve}
spec: {replicas: 3, template: {spec: {containers: [{resources: {limits: {nvidia.com/gpu: 4}}}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: serve}
`, newWhyCluster(1, 1), nil, true},
		{"a TrainJob", `apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: tune}
spec:
  runtimeRef: {name: torch-distributed}
  trainer: {numNodes: 2, resourcesPerNode: {limits: {nvidia.com/gpu: 8}}}
`, newWhyCluster(2, 0), nil, true},
		{"pods of a gang are missing", `apiVersion: v1
kind: Pod
metadata:
  name: part-0
  labels: {pod-group.scheduling.sigs.k8s.io/name: part, pod-group.scheduling.sigs.k8s.io/min-available: "2"}
spec: {containers: [{resources: {limits: {nvidia.com/gpu: 8}}}]}
`, newWhyCluster(2, 0), nil, false},
		{"an urgent Job", strings.Replace(asked(4, leaf), "    spec:\n", "    spec:\n      priority: 1000\n", 1), newWhyCluster(2, 1), nil, false},
	} {
		if tt.change != nil {
			tt.change(tt.cluster)
		}
		set, err := manifest.Read(strings.NewReader(tt.text), "ai")
		if err != nil {
			t.Fatalf("%s: %v", tt.title, err)
		}
		before := len(tt.cluster.Pods)
		fit := explain.FitOf(t.Context(), &tt.cluster.Cluster, set, whyNow())
		if fit.Fits != tt.fits || len(tt.cluster.Pods) != before {
			t.Errorf("%s: fits %t, %d pods of %d in the cluster", tt.title, fit.Fits, len(tt.cluster.Pods), before)
		}
		on := map[string]int{}
		for i := range fit.Gangs {
			for _, p := range fit.Gangs[i].Places {
				on[p.Node]++
			}
		}
		for node, n := range on {
			if n > 2 || n > 1 && tt.title != "a Deployment and a Service" {
				t.Errorf("%s: %d pods on %s", tt.title, n, node)
			}
		}
		fmt.Fprintf(&got, "# %s\n%s\n", tt.title, fitText(fit, whyNow()))
	}
	golden.Compare(t, "testdata/plan.txt", got.String(), *update)
}

// TestPlanOfClaims plans pods with claims beside each other: three nodes have eight GPUs each for claims.
func TestPlanOfClaims(t *testing.T) {
	w, text := newClaimCluster(t), `apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: all}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.heddle.dev, count: 8}}]}}}
`
	for i := range 4 {
		text += fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: p%d}
spec: {resourceClaims: [{name: gpus, resourceClaimTemplateName: all}], containers: [{name: main}]}
`, i)
	}
	set, err := manifest.Read(strings.NewReader(text), "ai")
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range set.Pods {
		set.Claim(pod, &pod.Spec.ResourceClaims[0], set.Templates[types.NamespacedName{Namespace: "ai", Name: "all"}])
	}
	fit, nodes := explain.FitOf(t.Context(), &w.Cluster, set, whyNow()), map[string]bool{}
	for i := range fit.Gangs[:3] {
		for _, p := range fit.Gangs[i].Places {
			nodes[p.Node] = true
		}
	}
	if last := &fit.Gangs[3]; len(nodes) != 3 || len(last.Places) != 0 || last.When.Never != "" {
		t.Errorf("three pods on %v, the fourth on %v, never: %s", nodes, last.Places, last.When.Never)
	}
}
