package main

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/features"

	"github.com/heddle-dev/heddle/api/wellknown"
)

const (
	leafLabel  = wellknown.TopologyPrefix + "leaf"
	spineLabel = wellknown.TopologyPrefix + "spine"
)

// composite adds a CompositePodGroup whose nodes have one value of a label, and PodGroups in it of n pods with four GPUs,
// each in one leaf.
func (w *cluster) composite(name, parent, label string, groups, n int) {
	w.Helper()
	o := &schedulingv1alpha3.CompositePodGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uuid.NewUUID()},
		Spec: schedulingv1alpha3.CompositePodGroupSpec{
			SchedulingPolicy: schedulingv1alpha3.CompositePodGroupSchedulingPolicy{
				Gang: &schedulingv1alpha3.CompositeGangSchedulingPolicy{MinGroupCount: int32(max(groups, 1))},
			},
		},
	}
	if label != "" {
		o.Spec.SchedulingConstraints = &schedulingv1alpha3.CompositePodGroupSchedulingConstraints{
			Topology: []schedulingv1alpha3.TopologyConstraint{{Key: label}},
		}
	}
	if parent != "" {
		o.Spec.ParentCompositePodGroupName = &parent
	}
	w.add(o)
	for i := range groups {
		g := podGroup(fmt.Sprintf("%s-%d", name, i), int32(n), nil)
		g.Spec.ParentCompositePodGroupName = &name
		g.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{
			Topology: []schedulingv1beta1.TopologyConstraint{{Key: leafLabel}},
		}
		w.add(g)
		for j := range n {
			w.add(grouped(fmt.Sprintf("%s-%d-%d", name, i, j), 4, g.Name))
		}
	}
}

// startComposite runs the scheduler with the gate CompositePodGroup, on leaves of two nodes, a number of them in each spine.
func startComposite(t *testing.T, spines ...int) (w *cluster, leaf, spine map[string]string) {
	t.Helper()
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, map[featuregate.Feature]bool{
		features.GenericWorkload: true, features.TopologyAwareWorkloadScheduling: true, features.CompositePodGroup: true,
	})
	leaf, spine = map[string]string{}, map[string]string{}
	var nodes []*corev1.Node
	for s, leaves := range spines {
		for l := range leaves {
			for n := range 2 {
				node := node(fmt.Sprintf("n%d%d%d", s, l, n), 4)
				leaf[node.Name], spine[node.Name] = fmt.Sprintf("leaf-%d%d", s, l), fmt.Sprintf("spine-%d", s)
				node.Labels[leafLabel], node.Labels[spineLabel] = leaf[node.Name], spine[node.Name]
				nodes = append(nodes, node)
			}
		}
	}
	return startFrom(t, documentedNative, args(`"genericWorkload": true`), nodes...), leaf, spine
}

// A composite goes to the fullest spine that holds it, and each of its PodGroups to one leaf.
func TestCompositePodGroup(t *testing.T) {
	w, leaf, spine := startComposite(t, 1, 3, 2)
	where := func(name string) {
		t.Helper()
		pods := w.until(name+" bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, name) == 4 })
		if in := groupOf(pods, name, spine); len(in) != 1 {
			t.Errorf("%s is in %v", name, in)
		}
		for i := range 2 {
			if in := groupOf(pods, fmt.Sprintf("%s-%d", name, i), leaf); len(in) != 1 {
				t.Errorf("group %d of %s is in %v", i, name, in)
			}
		}
	}
	w.composite("x", "", spineLabel, 2, 2)
	where("x")
	if in := groupOf(w.pods(), "x", spine); in["spine-2"] != 4 {
		t.Errorf("x is in %v, not in the smallest spine that holds it", in)
	}
	w.composite("y", "", spineLabel, 2, 2)
	where("y")
	// Two leaves are free, of two spines.
	w.composite("z", "", spineLabel, 2, 2)
	w.rejected("z", "rejected by podgroup z: "+spineLabel+" spine-")
	if n := bound(w.pods(), "z"); n > 0 {
		t.Errorf("%d of z have a node", n)
	}
	w.composite("v", "", "", 2, 2)
	w.until("v bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "v") == 4 })
	for i := range 4 {
		w.delete(fmt.Sprintf("x-%d-%d", i/2, i%2))
	}
	where("z")
}

func TestCompositePodGroupIsRejected(t *testing.T) {
	w, _, _ := startComposite(t, 2)
	w.composite("outer", "", spineLabel, 0, 0)
	w.composite("inner", "outer", leafLabel, 1, 2)
	w.rejected("inner", "its topology constraint is unsupported beside the composite podgroup inner among its groups")
	w.composite("rack", "", "example.com/rack", 1, 1)
	w.rejected("rack", "rejected by podgroup rack: no node has the label example.com/rack")
	pods := w.pods()
	for name, p := range pods {
		if p.Spec.NodeName != "" || strings.Contains(why(p), "panic") {
			t.Errorf("%s: %s", name, why(p))
		}
	}
}
