package planner

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// zoned are nodes with one label zone, and so many pods of an earlier job with one GPU each.
func zoned(zones []string, pods []int) (nodes []*Node) {
	for i, zone := range zones {
		var on []*corev1.Pod
		for j := range pods[i] {
			on = append(on, single(fmt.Sprint("old-", i, "-", j)))
		}
		name := fmt.Sprint("n", i)
		nodes = append(nodes, withGPUs(name, map[string]string{"zone": zone, corev1.LabelHostname: name}, on...))
	}
	return nodes
}

// single is a pod with a GPU.
func single(name string) *corev1.Pod {
	p := requesting(name, 1)
	p.Labels = map[string]string{"app": "x"}
	return p
}

func spreadBy(key string, skew int32) corev1.TopologySpreadConstraint {
	return corev1.TopologySpreadConstraint{
		TopologyKey: key, MaxSkew: skew, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
	}
}

// most is how many pods a skew lets in: all domains are filled in turn until the emptiest has no
// room left.
func most(have, room []int, skew int) (n int) {
	have, room = slices.Clone(have), slices.Clone(room)
	for {
		best := -1
		for d := range have {
			if room[d] > 0 && have[d]+1-slices.Min(have) <= skew && (best < 0 || have[d] < have[best]) {
				best = d
			}
		}
		if best < 0 {
			return n
		}
		have[best]++
		room[best]--
		n++
	}
}

// TestSpreadFindsRoom: with one constraint a gang has a plan exactly if there is one, and each
// plan keeps the skew after every member.
func TestSpreadFindsRoom(t *testing.T) {
	dice, planned := rand.New(rand.NewPCG(3, 4)), 0
	for round := range 400 {
		var zones []string
		var old []int
		for range 2 + dice.IntN(6) {
			zones = append(zones, string('a'+rune(dice.IntN(3))))
			old = append(old, dice.IntN(9))
		}
		skew, pods := 1+dice.IntN(3), 2+dice.IntN(12)
		nodes := zoned(zones, old)
		g := Gang{Key: types.NamespacedName{Namespace: "default", Name: "x"}, MinMember: pods}
		for i := range pods {
			p := single(fmt.Sprint("x-", i))
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{spreadBy("zone", int32(skew))}
			g.Members = append(g.Members, Member{Pod: p, Class: ClassOf(p, nil), GPUs: 1})
		}
		names := slices.Compact(slices.Sorted(slices.Values(zones)))
		have, room := make([]int, len(names)), make([]int, len(names))
		for i, zone := range zones {
			at := slices.Index(names, zone)
			have[at] += old[i]
			room[at] += 8 - old[i]
		}
		tried := dice.IntN(pods)
		plan := newPlanner().Plan(&Request{
			Gangs: []Gang{g}, Query: Query{Nodes: nodes}, Tried: g.Members[tried].Pod.UID,
		})
		if want := most(have, room, skew) >= pods; (plan.Reason == "") != want {
			t.Fatalf("round %d: zones %v with %v of 8, skew %d, %d pods: reason %q, room is %v", round, zones, old, skew, pods, plan.Reason, want)
		}
		if plan.Reason != "" {
			continue
		}
		planned++
		order := []int{tried}
		for i := range pods {
			if i != tried {
				order = append(order, i)
			}
		}
		for _, i := range order {
			var at int
			if _, err := fmt.Sscanf(plan.Places[0].Nodes[i], "n%d", &at); err != nil {
				t.Fatal(err)
			}
			zone := slices.Index(names, zones[at])
			if have[zone]++; have[zone]-slices.Min(have) > skew {
				t.Fatalf("round %d: member %d breaks the skew %d: %v", round, i, skew, have)
			}
			if old[at]++; old[at] > 8 {
				t.Fatalf("round %d: too many on %s", round, plan.Places[0].Nodes[i])
			}
		}
	}
	if planned < 100 {
		t.Errorf("only %d plans", planned)
	}
}

func byHost(p *corev1.Pod) {
	p.Spec.TopologySpreadConstraints = nil
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
		}},
	}}
}

// TestLimits: what counts and what does not.
func TestLimits(t *testing.T) {
	honor, ignore := corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore
	for name, tt := range map[string]struct {
		zones  []string
		old    []int
		pods   int
		change func(p *corev1.Pod)
		want   string // the reason, or where
	}{
		"an old job counts": {[]string{"a", "b"}, []int{4, 0}, 4, func(*corev1.Pod) {}, "n1 n1 n1 n1"},
		"nodes that the affinity leaves out do not": {[]string{"a", "b", "c"}, []int{0, 0, 8}, 2, func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n0"}
		}, "n0 n0"},
		"unless the constraint ignores that": {[]string{"a", "b"}, []int{0, 0}, 2, func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n0"}
			p.Spec.TopologySpreadConstraints[0].NodeAffinityPolicy = &ignore
		}, "1 of 2 fit where their constraints on zone let them"},
		"a tainted zone counts": {[]string{"a", "t"}, []int{0, 0}, 2, func(*corev1.Pod) {}, "1 of 2 fit where their constraints on zone let them"},
		"unless the constraint honors taints": {[]string{"a", "t"}, []int{0, 0}, 2, func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints[0].NodeTaintsPolicy = &honor
		}, "n0 n0"},
		"too few domains": {[]string{"a", "b"}, []int{0, 0}, 4, func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints[0].MinDomains = new(int32(3))
		}, "2 of 4 fit where their constraints on zone let them"},
		"matchLabelKeys": {[]string{"a", "b"}, []int{4, 0}, 4, func(p *corev1.Pod) {
			p.Labels["rev"] = "2"
			p.Spec.TopologySpreadConstraints[0].MatchLabelKeys = []string{"rev"}
		}, "n0 n1 n0 n1"},
		"a constraint that does not select its pod": {[]string{"a", "b"}, []int{0, 0}, 3, func(p *corev1.Pod) {
			p.Labels["app"] = "y"
		}, "n0 n0 n0"},
		"only a wish": {[]string{"a", "b"}, []int{0, 0}, 3, func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable = corev1.ScheduleAnyway
		}, "n0 n0 n0"},
		"apart by zone": {[]string{"a", "a", "b"}, []int{0, 0, 0}, 2, func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = nil
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
				}},
			}}
		}, "n0 n2"},
		"apart by a host name that two nodes share": {[]string{"same", "same", "b"}, []int{0, 0, 0}, 2, byHost, "n0 n2"},
		"three of them": {
			[]string{"same", "same", "b"},
			[]int{0, 0, 0},
			3, byHost,
			"2 of 3 fit where their constraints on kubernetes.io/hostname let them",
		},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := zoned(tt.zones, tt.old)
			for i, zone := range tt.zones {
				switch zone {
				case "t":
					nodes[i].Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
				case "same":
					nodes[i].Labels[corev1.LabelHostname] = "same"
				}
			}
			g := Gang{MinMember: tt.pods}
			for i := range tt.pods {
				p := single(fmt.Sprint("x-", i))
				p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{spreadBy("zone", 1)}
				tt.change(p)
				g.Members = append(g.Members, Member{Pod: p, Class: ClassOf(p, nil), GPUs: 1})
			}
			plan := newPlanner().Plan(&Request{Gangs: []Gang{g}, Query: Query{Nodes: nodes}})
			got := plan.Reason
			if got == "" {
				got = strings.Join(plan.Places[0].Nodes, " ")
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
