package main

import (
	"fmt"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// startNative runs the scheduler with the feature gates and the documented
// configuration for PodGroups of scheduling.k8s.io, on nodes of four GPUs in
// leaves of two: n0 and n1, n2 and n3, ...
func startNative(t *testing.T, m *master, nodes ...*corev1.Node) (w *cluster, at map[string]string) {
	t.Helper()
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, map[featuregate.Feature]bool{
		features.GenericWorkload: true, features.TopologyAwareWorkloadScheduling: true,
	})
	at = map[string]string{}
	var names []string
	for i, n := range nodes {
		names = append(names, n.Name)
		at[n.Name] = fmt.Sprintf("leaf-%02d", i/2)
	}
	m.set(leaves(2, names...))
	w = startFrom(t, documentedNative, withMaster(t, m, `, "genericWorkload": true, "withoutMap": "wait"`), nodes...)
	m.await()
	return w, at
}

func fourGPUs(n int) (nodes []*corev1.Node) {
	for i := range n {
		nodes = append(nodes, node(fmt.Sprintf("n%d", i), 4))
	}
	return nodes
}

func podGroup(name string, least int32, annotations map[string]string) *schedulingv1beta1.PodGroup {
	return &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uuid.NewUUID(), Annotations: annotations},
		Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{
			Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: least},
		}},
	}
}

// grouped is a pod of a PodGroup of scheduling.k8s.io.
func grouped(name string, gpus int, group string) *corev1.Pod {
	p := pod(name, gpus, nil)
	p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
	return p
}

func (w *cluster) group(name string, n, gpus int, annotations map[string]string) {
	w.add(podGroup(name, int32(n), annotations))
	for i := range n {
		w.add(grouped(fmt.Sprintf("%s-%d", name, i), gpus, name))
	}
}

func required(kind string) map[string]string {
	return map[string]string{"heddle.dev/gang-required-level": kind}
}

// repelled is a pod that must not be on a node with one of app=guard, which no
// plan sees.
func repelled(p *corev1.Pod) *corev1.Pod {
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guard"}}, TopologyKey: corev1.LabelHostname,
	}}}}
	return p
}

func guard(on string) *corev1.Pod {
	p := pod("guard-"+on, 0, map[string]string{"app": "guard"})
	p.Spec.NodeName = on
	return p
}

// feasible is how many placements the scheduler found to be so.
func feasible(t *testing.T) (n float64) {
	t.Helper()
	// It registers its metrics once, and this one only if the gate is on then.
	_ = legacyregistry.Register(metrics.PlacementEvaluations)
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "scheduler_placement_evaluations_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == "feasible" {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

// BenchmarkNativeGangs is BenchmarkGangs with PodGroups of scheduling.k8s.io: by heddle's plugin, and
// by kube-scheduler alone, whose PodGroups require one value of the label that heddle-topo-master gives
// the nodes of a leaf.
func BenchmarkNativeGangs(b *testing.B) {
	const groups, size = 256, 18
	featuregatetesting.SetFeatureGatesDuringTest(b, utilfeature.DefaultFeatureGate, map[featuregate.Feature]bool{
		features.GenericWorkload: true, features.TopologyAwareWorkloadScheduling: true,
	})
	m := &master{}
	var names []string
	var nodes []*corev1.Node
	at := map[string]string{}
	for i := range groups * size {
		name := fmt.Sprintf("n%03d-%02d", i/size, i%size)
		n := node(name, 8)
		n.Labels[wellknown.TopologyPrefix+"leaf"] = fmt.Sprint(i / size)
		names, nodes = append(names, name), append(nodes, n)
		at[name] = fmt.Sprint(i / size)
	}
	m.set(leaves(size, names...))
	server := httptest.NewServer(m)
	defer server.Close()
	for _, tt := range []struct {
		name  string
		start func(*testing.B) *cluster
		gangs int
		// constraints are of each PodGroup.
		constraints *schedulingv1beta1.PodGroupSchedulingConstraints
	}{
		{"heddle", func(b *testing.B) *cluster {
			b.Helper()
			w := startFrom(b, documentedNative, fmt.Sprintf(`{"topoMaster": %q, "interval": "1s", "genericWorkload": true}`, server.URL+"/node_group"), nodes...)
			m.await()
			return w
		}, 24, nil},
		{"kubernetes", func(b *testing.B) *cluster {
			b.Helper()
			return startAs(b, stock(b, ""), nodes...)
		}, 4, &schedulingv1beta1.PodGroupSchedulingConstraints{
			Topology: []schedulingv1beta1.TopologyConstraint{{Key: wellknown.TopologyPrefix + "leaf"}},
		}},
	} {
		b.Run(tt.name, func(b *testing.B) {
			watch.DefaultChanSize = 100000 // As in BenchmarkGangs.
			w := tt.start(b)
			for round := 0; b.Loop(); round++ {
				prefix := fmt.Sprintf("r%d-", round)
				for g := range tt.gangs {
					name := fmt.Sprintf("%s%d", prefix, g)
					group := podGroup(name, size, nil)
					group.Spec.SchedulingConstraints = tt.constraints
					w.add(group)
					for i := range size {
						w.add(grouped(fmt.Sprintf("%s-%d", name, i), 8, name))
					}
				}
				pods := w.until("all bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, prefix) == tt.gangs*size })
				in := 0
				for g := range tt.gangs {
					in += len(groupOf(pods, fmt.Sprintf("%s%d-", prefix, g), at))
				}
				b.ReportMetric(float64(in)/float64(tt.gangs), "groups/gang")
			}
			b.ReportMetric(b.Elapsed().Seconds()*1e3/float64(tt.gangs*b.N), "ms/gang")
			w.stop()
		})
	}
}
