package topo

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/golden"
	"github.com/heddle-dev/heddle/topo/explain"
)

var update = flag.Bool("update", false, "write testdata")

// whyCluster is two leaf groups of four nodes with eight GPUs, all of which run pods of
// eight GPUs but as many as asked for.
type whyCluster struct{ explain.Cluster }

func whyNow() time.Time { return time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC) }

func newWhyCluster(freeA, freeB int) *whyCluster {
	w := &whyCluster{}
	for g, free := range []int{freeA, freeB} {
		leaf := v1alpha1.Group{Name: fmt.Sprintf("leaf-%c", 'a'+g), Kind: "leaf", Status: v1alpha1.StatusReady}
		for n := range 4 {
			name := fmt.Sprintf("%c%d", 'a'+g, n)
			node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"product": "H100"}}}
			node.Status.Allocatable = corev1.ResourceList{
				"nvidia.com/gpu": resource.MustParse("8"), corev1.ResourceCPU: resource.MustParse("64"),
				corev1.ResourcePods: resource.MustParse("110"),
			}
			w.Nodes = append(w.Nodes, node)
			leaf.Child = append(leaf.Child, v1alpha1.Group{Name: name, Kind: v1alpha1.KindNode, Status: v1alpha1.StatusReady})
			if n >= free {
				w.add(fmt.Sprintf("llama-%c", 'a'+g), 1, 8, func(p *corev1.Pod) {
					p.Name, p.Spec.NodeName, p.Status.Phase = fmt.Sprintf("llama-%c-%d", 'a'+g, n), name, corev1.PodRunning
					started := metav1.NewTime(whyNow().Add(-time.Hour))
					p.Status.StartTime = &started
					p.Annotations = map[string]string{"heddle.dev/expected-duration": "90m"}
					p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "llama", Controller: new(true)}}
				})
			}
		}
		w.Groups = append(w.Groups, leaf)
	}
	return w
}

// add makes pods of a gang, or of none if the name ends in a dash.
func (w *whyCluster) add(name string, n, gpus int, change func(*corev1.Pod)) {
	for i := range n {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ai", Name: fmt.Sprintf("%s-%d", name, i), UID: types.UID(fmt.Sprintf("%s-%d of %d", name, i, len(w.Pods))),
		}}
		if !strings.HasPrefix(name, "single") {
			p.Labels = map[string]string{
				"pod-group.scheduling.sigs.k8s.io/name": name, "pod-group.scheduling.sigs.k8s.io/min-available": fmt.Sprint(n),
			}
		}
		list := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(fmt.Sprint(gpus)), corev1.ResourceCPU: resource.MustParse("4")}
		p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}}
		if change != nil {
			change(&p)
		}
		w.Pods = append(w.Pods, p)
	}
}

func (w *whyCluster) podGroup(name string, spec map[string]any) {
	w.PodGroups = append(w.PodGroups, map[string]any{
		"metadata": map[string]any{"namespace": "ai", "name": name}, "spec": spec,
	})
}

func required(level string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{"heddle.dev/gang-required-level": level} }
}

// TestWhy compares the words with testdata/why.txt.
func TestWhy(t *testing.T) {
	var got strings.Builder
	for _, tt := range []struct {
		title, name string
		cluster     *whyCluster
		pods        func(*whyCluster)
	}{
		{"a gang behind another", "train", newWhyCluster(2, 1), func(w *whyCluster) { w.add("train", 4, 8, required("leaf")) }},
		{"a gang that no leaf holds", "big", newWhyCluster(4, 4), func(w *whyCluster) { w.add("big", 6, 8, required("leaf")) }},
		{"a gang for another product", "other", newWhyCluster(4, 4), func(w *whyCluster) {
			w.add("other", 2, 8, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"product": "H200"} })
		}},
		{"a reservation", "kept", newWhyCluster(1, 0), func(w *whyCluster) {
			w.add("kept", 2, 8, func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{
					Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
					Message: "room is reserved from 12:30 in leaf leaf-a",
				}}
			})
		}},
		{"a pod of nine GPUs", "single-0", newWhyCluster(4, 4), func(w *whyCluster) { w.add("single", 1, 9, nil) }},
		{"a node that is cordoned, and one with two taints", "single-0", newWhyCluster(2, 0), func(w *whyCluster) {
			w.Nodes[0].Spec.Unschedulable = true
			w.Nodes[1].Spec.Taints = []corev1.Taint{
				{Key: "heddle.dev/node.usage", Value: "training", Effect: corev1.TaintEffectNoSchedule},
				{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule},
				{Key: "nvidia.com/gpu.product", Value: "H100", Effect: corev1.TaintEffectNoExecute},
			}
			w.add("single", 1, 4, nil)
		}},
		{"room that no scheduler has seen", "single-0", newWhyCluster(1, 1), func(w *whyCluster) { w.add("single", 1, 4, nil) }},
		{"a member stands for its gang; pods are missing", "part-0", newWhyCluster(4, 4), func(w *whyCluster) {
			w.add("part", 4, 8, nil)
			w.Pods = w.Pods[:2]
		}},
		{"without topo-master", "train", newWhyCluster(1, 1), func(w *whyCluster) {
			w.Groups = nil
			w.add("train", 4, 8, nil)
		}},
		{"a PodGroup object has the number", "group", newWhyCluster(2, 1), func(w *whyCluster) {
			w.add("group", 4, 8, func(p *corev1.Pod) { delete(p.Labels, "pod-group.scheduling.sigs.k8s.io/min-available") })
			w.podGroup("group", map[string]any{"minMember": 3.0})
		}},
		{"a PodGroup of Kubernetes", "native", newWhyCluster(1, 1), func(w *whyCluster) {
			w.add("native", 4, 8, func(p *corev1.Pod) {
				p.Labels, p.Spec.SchedulingGroup = nil, &corev1.PodSchedulingGroup{PodGroupName: new("native")}
			})
			w.podGroup("native", map[string]any{"schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": 2.0}}})
		}},
		{"a Job, whose pods may start alone", "job", newWhyCluster(1, 1), func(w *whyCluster) {
			w.add("job", 4, 8, func(p *corev1.Pod) { p.Labels = map[string]string{"batch.kubernetes.io/job-name": "job"} })
		}},
		{"all on one node", "near", newWhyCluster(1, 1), func(w *whyCluster) { w.add("near", 2, 8, required("node")) }},
		{"a level that the topology lacks", "far", newWhyCluster(2, 1), func(w *whyCluster) { w.add("far", 2, 8, required("spine")) }},
		{"another vendor's GPUs, held by a Job", "amd", newWhyCluster(0, 0), func(w *whyCluster) {
			for i := range w.Nodes {
				w.Nodes[i].Status.Allocatable["amd.com/gpu"] = resource.MustParse("8")
			}
			amd := func(p *corev1.Pod) {
				list := corev1.ResourceList{"amd.com/gpu": resource.MustParse("8")}
				p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
			}
			w.add("single-holder", 1, 8, func(p *corev1.Pod) {
				amd(p)
				p.Spec.NodeName, p.Status.Phase = "a0", corev1.PodRunning
			})
			w.add("amd", 8, 8, amd)
		}},
		{"another vendor's key for groups", "amd", newWhyCluster(0, 0), func(w *whyCluster) {
			for i := range w.Nodes[:5] {
				w.Nodes[i].Status.Allocatable["amd.com/gpu"] = resource.MustParse("8")
			}
			w.add("amd", 6, 8, func(p *corev1.Pod) {
				list := corev1.ResourceList{"amd.com/gpu": resource.MustParse("8")}
				p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
				p.Annotations = map[string]string{"amd.com/gpu-group-size": "24"}
			})
			w.Nodes[5].Status.Allocatable["amd.com/gpu"] = resource.MustParse("8")
		}},
		{"a member failed", "lost", newWhyCluster(4, 4), func(w *whyCluster) {
			w.add("lost", 2, 8, nil)
			w.Pods[0].Status.Phase = corev1.PodFailed
		}},
		{"all failed", "gone", newWhyCluster(4, 4), func(w *whyCluster) {
			w.add("gone", 1, 8, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		}},
		{"a gang that preemption helps", "urgent", newWhyCluster(2, 1), func(w *whyCluster) {
			w.add("urgent", 4, 8, func(p *corev1.Pod) {
				required("leaf")(p)
				p.Spec.Priority = new(int32(1000))
			})
		}},
		{"a gang that may not preempt", "polite", newWhyCluster(2, 1), func(w *whyCluster) {
			w.add("polite", 4, 8, func(p *corev1.Pod) {
				p.Spec.Priority, p.Spec.PreemptionPolicy = new(int32(1000)), new(corev1.PreemptNever)
			})
		}},
		{"room, and no node for each by a spread over zones", "spread", newWhyCluster(4, 4), func(w *whyCluster) {
			for i := range w.Nodes {
				w.Nodes[i].Labels["zone"] = w.Nodes[i].Name[:1]
			}
			w.Nodes[7].Spec.Unschedulable, w.Nodes[6].Spec.Unschedulable, w.Nodes[5].Spec.Unschedulable = true, true, true
			w.add("spread", 4, 8, func(p *corev1.Pod) {
				p.Labels["app"] = "spread"
				p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
					MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: corev1.DoNotSchedule,
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "spread"}},
				}}
			})
		}},
		{"room, and every zone has a pod that must be alone there", "apart", newWhyCluster(4, 4), func(w *whyCluster) {
			for i := range w.Nodes {
				w.Nodes[i].Labels["zone"] = w.Nodes[i].Name[:1]
			}
			w.add("apart", 3, 8, func(p *corev1.Pod) {
				p.Labels["app"] = "apart"
				p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
						TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "apart"}},
					}},
				}}
			})
		}},
		{"nodes that are kept for repair", "spared", newWhyCluster(2, 1), func(w *whyCluster) {
			w.Spares = intstr.Parse("25%")
			w.add("spared", 2, 8, nil)
		}},
		{"a gang that needs repair", "mended", newWhyCluster(2, 0), func(w *whyCluster) {
			w.Spares = intstr.Parse("1")
			w.add("mended", 2, 8, nil)
			w.Pods[len(w.Pods)-1].Spec.NodeName = "a0"
		}},
		{"a pod that runs", "llama-a-3", newWhyCluster(3, 4), func(*whyCluster) {}},
	} {
		tt.pods(tt.cluster)
		answer, err := explain.Of(t.Context(), &tt.cluster.Cluster, "ai", tt.name, whyNow())
		if err != nil {
			t.Fatalf("%s: %v", tt.title, err)
		}
		if tt.name == "mended" {
			answer.Avoids = []string{"b3"}
		}
		if tt.name == "train" && len(answer.Groups) > 0 && answer.Groups[0].Holders[0].Owner != "Job/llama" {
			t.Errorf("the holder's owner is %q", answer.Groups[0].Holders[0].Owner)
		}
		fmt.Fprintf(&got, "# %s\n%s\n", tt.title, whyText(answer, len(tt.cluster.Groups) > 0, whyNow()))
	}
	golden.Compare(t, "testdata/why.txt", got.String(), *update)
	if _, err := explain.Of(t.Context(), &newWhyCluster(1, 1).Cluster, "ai", "absent", whyNow()); err == nil {
		t.Error("what is not there has an answer")
	}
}
