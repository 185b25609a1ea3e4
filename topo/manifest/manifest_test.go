package manifest_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/manifest"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// template is a pod's with GPUs in limits alone, as people write it.
func template(gpus int) string {
	return fmt.Sprintf(`{metadata: {annotations: {own: mine}}, spec: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: %d, cpu: 4}}}]}}`, gpus)
}

// Each kind makes the pods that its controller makes: in a gang of that API, in order of ranks.
func TestKinds(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		// want has a line for each pod: its name, its gang if it is in one, and its GPUs.
		want []string
	}{
		{"a pod", "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{resources: {limits: {nvidia.com/gpu: 2}}}]}}", []string{"p 2"}},
		{
			"a pod of a gang",
			"{apiVersion: v1, kind: Pod, metadata: {name: p-0, labels: {pod-group.scheduling.sigs.k8s.io/name: g}}, spec: {containers: [{}]}}",
			[]string{"p-0 g 0"},
		},
		{"a Deployment", "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {replicas: 2, template: " + template(1) + "}}", []string{"d-0 1", "d-1 1"}},
		{"a StatefulSet without a number", "{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: s}, spec: {template: " + template(1) + "}}", []string{"s-0 1"}},
		{
			"a Job with fewer completions", "{apiVersion: batch/v1, kind: Job, metadata: {name: j}, spec: {parallelism: 8, completions: 2, template: " + template(4) + "}}",
			[]string{"j-0 j 4", "j-1 j 4"},
		},
		{
			"a JobSet", `{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {name: js}, spec: {replicatedJobs: [
				{name: lead, template: {spec: {template: ` + template(0) + `}}},
				{name: work, replicas: 2, template: {spec: {parallelism: 2, template: ` + template(8) + `}}}]}}`,
			[]string{"js-lead-0-0 js 0", "js-work-0-0 js 8", "js-work-0-1 js 8", "js-work-1-0 js 8", "js-work-1-1 js 8"},
		},
		{
			"a LeaderWorkerSet", `{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, metadata: {name: l},
				spec: {replicas: 2, leaderWorkerTemplate: {size: 2, workerTemplate: ` + template(8) + `}}}`,
			[]string{"l-0-0 l-0 8", "l-0-1-0 l-0 8", "l-1-0 l-1 8", "l-1-1-0 l-1 8"},
		},
		{
			"an MPIJob", `{apiVersion: kubeflow.org/v2beta1, kind: MPIJob, metadata: {name: m}, spec: {mpiReplicaSpecs: {
				Worker: {replicas: 2, template: ` + template(8) + `}, Launcher: {template: ` + template(0) + `}}}}`,
			[]string{"m-launcher-0 m 0", "m-worker-0 m 8", "m-worker-1 m 8"},
		},
		{
			"a PyTorchJob", `{apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {name: p}, spec: {pytorchReplicaSpecs: {
				Master: {replicas: 1, template: ` + template(8) + `}, Worker: {replicas: 1, template: ` + template(8) + `}}}}`,
			[]string{"p-master-0 p 8", "p-worker-0 p 8"},
		},
		{
			"a TrainJob", `{apiVersion: trainer.kubeflow.org/v1alpha1, kind: TrainJob, metadata: {name: t}, spec: {
				runtimeRef: {name: torch-distributed}, trainer: {numNodes: 2, resourcesPerNode: {limits: {nvidia.com/gpu: 8}}}}}`,
			[]string{"t-node-0 t 8", "t-node-1 t 8"},
		},
		{
			"a Job of Volcano", `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {name: v}, spec: {minAvailable: 2, tasks: [
				{name: ps, replicas: 1, template: ` + template(0) + `}, {replicas: 2, template: ` + template(1) + `}]}}`,
			[]string{"v-ps-0 v 0", "v-default1-0 v 1", "v-default1-1 v 1"},
		},
		{
			"a RayCluster", `{apiVersion: ray.io/v1, kind: RayCluster, metadata: {name: r}, spec: {headGroupSpec: {template: ` + template(0) + `},
				workerGroupSpecs: [{groupName: gpu, replicas: 2, template: ` + template(8) + `}]}}`,
			[]string{"r-head-0 r 0", "r-gpu-0 r 8", "r-gpu-1 r 8"},
		},
		{
			"a RayJob", `{apiVersion: ray.io/v1, kind: RayJob, metadata: {name: r}, spec: {rayClusterSpec: {headGroupSpec: {template: ` + template(1) + `}}}}`,
			[]string{"r-head-0 r 1"},
		},
		{
			"JSON objects one after another",
			`{"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{}]}}{"kind": "Pod", "metadata": {"name": "b"}, "spec": {"containers": [{}]}}`,
			[]string{"a 0", "b 0"},
		},
		{
			"several documents and a List", `---
apiVersion: v1
kind: List
items: [{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: other}, spec: {containers: [{}]}}]
---
{apiVersion: v1, kind: Service, metadata: {name: s}}
---
# A comment alone.
---
{apiVersion: v1, kind: Pod, metadata: {generateName: b-}, spec: {nodeName: gone, containers: [{}]}}
`, []string{"a 0", "b 0"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set, err := manifest.Read(strings.NewReader(tt.text), "ai")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			n := 0
			for _, pod := range set.Pods {
				gpus := planner.Requests(pod)["nvidia.com/gpu"]
				line := pod.Name
				if m, in := gang.MemberOf(pod, int32(gpus)); in {
					line += " " + strings.TrimPrefix(m.Gang, "ai/")
				}
				got = append(got, fmt.Sprint(line, " ", gpus))
				if pod.Spec.NodeName != "" {
					t.Errorf("pod %s has node %s", pod.Name, pod.Spec.NodeName)
				}
			}
			for i := range set.Jobs {
				n += set.Jobs[i].Pods
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || n != len(got) {
				t.Errorf("%d pods of jobs; pods (-want +got):\n%s", n, diff)
			}
		})
	}
}

func TestBadManifests(t *testing.T) {
	for text, want := range map[string]string{
		"": "no document makes pods",
		"{apiVersion: v1, kind: Service, metadata: {name: s}}": "no document makes pods",
		"a: [":                             "document 1: ",
		"metadata: {name: x}":              "document 1: kind is missing",
		"{kind: Pod}":                      "document 1: Pod: metadata.name is missing",
		"{kind: Pod, metadata: {name: p}}": "document 1: Pod ai/p: spec is missing",
		"{apiVersion: acme/v1, kind: Trainer, metadata: {name: x}}":                                                                 "Trainer ai/x: unsupported kind of acme/v1: supported are Deployment, Job",
		"{apiVersion: batch/v1, kind: Job, metadata: {name: j}}":                                                                    "Job ai/j: spec is missing",
		"{kind: Job, metadata: {name: j}, spec: {parallelism: -1, template: {}}}":                                                   "spec: json: cannot unmarshal number -1 into Go struct field jobSpec.parallelism",
		"{kind: Job, metadata: {name: j}, spec: {parallelism: two}}":                                                                "spec: json: cannot unmarshal",
		"{kind: Deployment, metadata: {name: d}, spec: {replicas: 10001, template: " + template(1) + "}}":                           "makes 10001 pods or more: at most 10000 are planned",
		"{kind: MPIJob, metadata: {name: m}, spec: {}}":                                                                             "spec.mpiReplicaSpecs is missing",
		"{kind: Pod, metadata: {name: p}, spec: {containers: [{resources: {limits: {cpu: lots}}}]}}":                                "quantities must match",
		"{kind: JobSet, metadata: {name: j}, spec: {replicatedJobs: [{replicas: 2000000000, template: {spec: {parallelism: 0}}}]}}": "cannot unmarshal number 2000000000 into Go struct field .replicatedJobs.replicas",
		"{kind: LeaderWorkerSet, metadata: {name: l}, spec: {leaderWorkerTemplate: {size: -1}}}":                                    "cannot unmarshal number -1 into Go struct field .leaderWorkerTemplate.size",
		"{kind: List, items: [{kind: List, items: []}]}":                                                                            "items[0]: unsupported List in a List",
		"{kind: PodGroup, metadata: 1}":                                                                                             "document 1: ",
		"{kind: List, items: [{kind: Job, metadata: {name: j}}]}":                                                                   "document 1: items[0]: Job ai/j: spec is missing",
	} {
		if _, err := manifest.Read(strings.NewReader(text), "ai"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// Every example of the repository with pods is read.
func TestExamples(t *testing.T) {
	read := 0
	err := filepath.WalkDir("../../deploy/examples", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		set, err := manifest.Read(strings.NewReader(string(text)), "ai")
		pods := regexp.MustCompile(`(?m)^kind: (` + strings.Join(manifest.Kinds(), "|") + `)$`)
		if err != nil && pods.Match(text) {
			t.Errorf("%s: %v", path, err)
		}
		if err == nil {
			read++
			if missing := claim(set); len(missing) > 0 {
				t.Errorf("%s lacks %v", path, missing)
			}
		}
		return nil
	})
	if err != nil || read < 20 {
		t.Errorf("%d examples, %v", read, err)
	}
}

// claim makes the claims of the pods, and returns the templates that the manifest lacks.
func claim(set *manifest.Set) (missing []types.NamespacedName) {
	for _, pod := range set.Pods {
		for i := range pod.Spec.ResourceClaims {
			ref := &pod.Spec.ResourceClaims[i]
			if ref.ResourceClaimTemplateName == nil {
				continue
			}
			name := types.NamespacedName{Namespace: pod.Namespace, Name: *ref.ResourceClaimTemplateName}
			if t := set.Templates[name]; t != nil {
				set.Claim(pod, ref, t)
			} else {
				missing = append(missing, name)
			}
		}
	}
	return missing
}

func FuzzRead(f *testing.F) {
	f.Add("{kind: Job, metadata: {name: j}, spec: {parallelism: 2, template: " + template(1) + "}}")
	f.Add("{kind: LeaderWorkerSet, metadata: {name: l}, spec: {replicas: 2, leaderWorkerTemplate: {size: -1}}}")
	f.Add("{kind: RayCluster, metadata: {name: r}, spec: {workerGroupSpecs: [{replicas: 99999, numOfHosts: 99999}]}}")
	f.Fuzz(func(t *testing.T, text string) {
		set, err := manifest.Read(strings.NewReader(text), "ai")
		if err != nil {
			return
		}
		if claim(set); len(set.Pods) > manifest.MaxPods {
			t.Errorf("%d pods", len(set.Pods))
		}
	})
}
