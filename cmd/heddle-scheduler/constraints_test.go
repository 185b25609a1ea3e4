package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const zone = corev1.LabelTopologyZone

// zones are nodes of some GPUs each, named by zone.
func zones(of map[string][]int) (nodes []*corev1.Node) {
	for _, name := range slices.Sorted(slices.Values([]string{"a", "b", "c"})) {
		for i, gpus := range of[name] {
			n := node(fmt.Sprint(name, i), gpus)
			n.Labels[zone] = name
			nodes = append(nodes, n)
		}
	}
	return nodes
}

func spread(key string, skew int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			TopologyKey: key, MaxSkew: skew, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
		})
	}
}

func termsOf(p *corev1.Pod, key string) []corev1.PodAffinityTerm {
	return []corev1.PodAffinityTerm{{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}}}
}

// TestConstraintsOfMembers: hard constraints of the members of a gang on each other, as the
// scheduler's own filters check them. Plain kube-scheduler places each of these gangs.
func TestConstraintsOfMembers(t *testing.T) {
	for name, tt := range map[string]struct {
		nodes  map[string][]int
		pods   int
		change []func(*corev1.Pod)
		hosts  bool // count by host, not by zone
		want   []int
	}{
		"a pod for each host": {
			map[string][]int{"a": {8, 8, 8, 8}}, 4, []func(*corev1.Pod){spread(corev1.LabelHostname, 1)}, true, []int{1, 1, 1, 1},
		},
		"over zones of which one is small": {
			map[string][]int{"a": {8}, "b": {2}, "c": {8}}, 7, []func(*corev1.Pod){spread(zone, 1)}, false, []int{2, 2, 3},
		},
		"a pod for each zone": {
			map[string][]int{"a": {8, 8}, "b": {8}, "c": {8}}, 3, []func(*corev1.Pod){func(p *corev1.Pod) {
				p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: termsOf(p, zone),
				}}
			}}, false, []int{1, 1, 1},
		},
		"all in one zone": {
			map[string][]int{"a": {2, 2}, "b": {3, 3}, "c": {2}}, 5, []func(*corev1.Pod){func(p *corev1.Pod) {
				p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: termsOf(p, zone),
				}}
			}}, false, []int{5},
		},
		"one zone, hosts alike": {
			map[string][]int{"a": {2, 2}, "b": {4, 4}}, 6, []func(*corev1.Pod){spread(corev1.LabelHostname, 4), func(p *corev1.Pod) {
				p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: termsOf(p, zone),
				}}
			}}, false, []int{6},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, args(""), zones(tt.nodes)...)
			for i := range tt.pods {
				p := pod(fmt.Sprint("x-", i), 1, gangLabels("x", tt.pods))
				for _, change := range tt.change {
					change(p)
				}
				w.add(p)
			}
			pods := w.until("all bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "x") == tt.pods })
			on := map[string]int{}
			for _, p := range pods {
				if at := p.Spec.NodeName; tt.hosts {
					on[at]++
				} else {
					on[at[:1]]++
				}
			}
			// Which of equal ones has one more depends on who came first.
			if got := slices.Sorted(maps.Values(on)); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", on, tt.want)
			}
		})
	}
}

// TestPreferredNodes: what members prefer decides between places that are as tight.
func TestPreferredNodes(t *testing.T) {
	prefer := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 10, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: zone, Operator: corev1.NodeSelectorOpIn, Values: []string{"b", "c"},
				}}},
			}},
		}}
	}
	for name, tt := range map[string]struct {
		nodes  map[string][]int
		change func(*corev1.Pod)
		taint  string
		want   []string
	}{
		"affinity":           {map[string][]int{"a": {8}, "b": {8}}, prefer, "", []string{"b0"}},
		"only a wider place": {map[string][]int{"a": {8}, "b": {4, 4}}, prefer, "", []string{"a0"}},
		"taint":              {map[string][]int{"a": {8}, "b": {8}, "c": {8}}, prefer, "b0", []string{"c0"}},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := zones(tt.nodes)
			for _, n := range nodes {
				if n.Name == tt.taint {
					n.Spec.Taints = []corev1.Taint{{Key: "old", Effect: corev1.TaintEffectPreferNoSchedule}}
				}
			}
			w := start(t, args(""), nodes...)
			for i := range 8 {
				p := pod(fmt.Sprint("x-", i), 1, gangLabels("x", 8))
				tt.change(p)
				w.add(p)
			}
			pods := w.whole("x", 8)
			var on []string
			for _, p := range pods {
				on = append(on, p.Spec.NodeName)
			}
			slices.Sort(on)
			if got := slices.Compact(on); !slices.Equal(got, tt.want) {
				t.Errorf("on %v, want %v", got, tt.want)
			}
		})
	}
}

// Two nodes with one value of the label kubernetes.io/hostname are one place for pods that are apart by it.
func TestTwoNodesWithOneHostname(t *testing.T) {
	for pods, ok := range map[int]bool{3: true, 4: false} {
		t.Run(fmt.Sprint(pods, " pods"), func(t *testing.T) {
			var nodes []*corev1.Node
			for _, name := range []string{"a", "b", "c", "d"} {
				nodes = append(nodes, node(name, 1))
			}
			nodes[0].Labels[corev1.LabelHostname], nodes[1].Labels[corev1.LabelHostname] = "same", "same"
			w := start(t, args(""), nodes...)
			for i := range pods {
				l := gangLabels("x", pods)
				l["app"] = "x"
				p := pod(fmt.Sprint("x-", i), 1, l)
				p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: termsOf(p, corev1.LabelHostname),
				}}
				w.add(p)
			}
			if !ok {
				pods := w.until("rejected for the rule", func(pods map[string]*corev1.Pod) bool {
					return strings.Contains(why(pods["x-0"]), "rejected by podgroup x: 3 of 4 fit where their constraints on kubernetes.io/hostname let them")
				})
				if n := bound(pods, "x"); n > 0 {
					t.Errorf("%d of 4 have a node", n)
				}
				return
			}
			on := map[string]int{}
			for _, p := range w.whole("x", pods) {
				on[p.Spec.NodeName]++
			}
			if on["a"]+on["b"] != 1 || on["c"] != 1 || on["d"] != 1 {
				t.Errorf("on %v", on)
			}
		})
	}
}
