package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/features"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

func TestNativeGroupGoesToTheTightestLeaf(t *testing.T) {
	nodes := fourGPUs(8)
	w, at := startNative(t, &master{}, nodes...)
	// Half of leaf-02 is what the group needs.
	taken := pod("taken", 4, nil)
	taken.Spec.NodeName = "n5"
	w.add(taken)
	w.group("x", 4, 1, nil)
	pods := w.whole("x", 4)
	for name, p := range pods {
		if p.Spec.NodeName != "n4" && name != "taken" {
			t.Errorf("%s is on %s", name, p.Spec.NodeName)
		}
	}
	// Two leaves' worth, in slices of 8 GPUs: blocks of consecutive ranks.
	w.group("y", 8, 2, map[string]string{"nvidia.com/gpu-group-size": "8"})
	pods = w.whole("y", 8)
	for block := range 2 {
		in := map[string]bool{}
		for i := range 4 {
			in[at[pods[fmt.Sprintf("y-%d", block*4+i)].Spec.NodeName]] = true
		}
		if len(in) != 1 {
			t.Errorf("slice %d is in %v", block, in)
		}
	}
}

func TestNativeGroupIsRejectedWhole(t *testing.T) {
	w, _ := startNative(t, &master{}, fourGPUs(4)...)
	w.group("x", 3, 4, required("leaf"))
	pods := w.until("all rejected in the same words", func(pods map[string]*corev1.Pod) bool {
		for _, p := range pods {
			if !strings.Contains(why(p), "rejected by podgroup x: 2 of 3 fit, group leaf-00 is 4 GPUs short") {
				return false
			}
		}
		return true
	})
	if n := bound(pods, "x"); n > 0 {
		t.Errorf("%d have a node", n)
	}
	w.group("rack", 1, 1, required("rack"))
	w.until("rejected with the kinds of the tree", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["rack-0"]), "the topology has no rack; it has leaf")
	})
}

// The tightest leaf turns members away for what no plan sees: in the same cycle
// the next tier is tried, around the nodes that did.
func TestNativeGroupFallsBackToTheNextTier(t *testing.T) {
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		guards      []string
		want        int
	}{
		{"over two leaves", nil, []string{"n0", "n2"}, 2},
		{"in the other leaf", required("leaf"), []string{"n0"}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, at := startNative(t, &master{}, fourGPUs(4)...)
			before := feasible(t)
			for _, on := range tt.guards {
				w.add(guard(on))
			}
			w.add(podGroup("x", 2, tt.annotations))
			for i := range 2 {
				w.add(repelled(grouped(fmt.Sprintf("x-%d", i), 4, "x")))
			}
			pods := w.whole("x", 2)
			if in := groupOf(pods, "x", at); len(in) != tt.want {
				t.Errorf("x is in %v, want %d leaves", in, tt.want)
			}
			for name, p := range pods {
				// kube-scheduler may take the PodGroup from its queue before it has the second pod there.
				if why(p) != "" && !strings.Contains(why(p), "1 of 2 pods exist") {
					t.Errorf("%s was rejected first: %s", name, why(p))
				}
			}
			// What is left of the list is not tried out: the next members would fit
			// there too, and a placement be chosen by score.
			if n := feasible(t) - before; n != 1 {
				t.Errorf("%v placements were feasible", n)
			}
		})
	}
}

// What turns a member away is learned of all nodes at once, as it is for a gang of labels: the
// second placement is around 62 of them.
func TestNativeGroupLearnsAllNodesAtOnce(t *testing.T) {
	w, _ := startNative(t, &master{}, fourGPUs(64)...)
	before := feasible(t)
	for i := range 62 {
		w.add(guard(fmt.Sprintf("n%d", i)))
	}
	w.seen()
	for i := range 2 {
		w.add(repelled(grouped(fmt.Sprintf("x-%d", i), 4, "x")))
	}
	w.seen()
	w.add(podGroup("x", 2, nil))
	pods := w.whole("x", 2)
	for i := range 2 {
		if p := pods[fmt.Sprintf("x-%d", i)]; strings.Contains(why(p), "placements are available") {
			t.Errorf("%s was rejected in an earlier cycle: %s", p.Name, why(p))
		}
	}
	if n := feasible(t) - before; n != 1 {
		t.Errorf("%v placements were feasible", n)
	}
}

// The rejection of a group that no node takes has the reason of the filter that rejects its members.
func TestNativeRejectionHasTheFiltersReason(t *testing.T) {
	w, _ := startNative(t, &master{}, fourGPUs(32)...)
	for i := range 32 {
		w.add(guard(fmt.Sprintf("n%d", i)))
	}
	w.seen()
	w.add(podGroup("x", 2, nil))
	for i := range 2 {
		w.add(repelled(grouped(fmt.Sprintf("x-%d", i), 4, "x")))
	}
	w.until("x rejected with the filter's reason", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["x-0"]), "which rejected a member: node(s) didn't match pod anti-affinity rules")
	})
}

func TestNativeMembersStayTogether(t *testing.T) {
	w, at := startNative(t, &master{}, fourGPUs(4)...)
	w.add(podGroup("x", 2, nil))
	for i := range 2 {
		p := grouped(fmt.Sprintf("x-%d", i), 1, "x")
		p.Spec.NodeName = "n0" // A scheduler before this one bound them.
		w.add(p)
	}
	// The other leaf is fuller, and would be the tighter one.
	other := pod("other", 4, nil)
	other.Spec.NodeName = "n2"
	w.add(other)
	for i := range 4 {
		w.add(grouped(fmt.Sprintf("x-%d", i+2), 1, "x"))
	}
	pods := w.whole("x", 6)
	if in := groupOf(pods, "x", at); len(in) != 1 || in["leaf-00"] != 6 {
		t.Errorf("x is in %v", in)
	}
}

func TestNativeMembersBeyondTheMinimumFollow(t *testing.T) {
	w, _ := startNative(t, &master{}, node("n0", 3), node("n1", 2))
	w.add(podGroup("x", 4, nil))
	for i := range 6 {
		w.add(grouped(fmt.Sprintf("x-%d", i), 1, "x"))
	}
	pods := w.until("five bound and one rejected", func(pods map[string]*corev1.Pod) bool {
		return bound(pods, "x") == 5 && strings.Contains(why(pods["x-5"]), "rejected by podgroup x")
	})
	if pods["x-5"].Spec.NodeName != "" {
		t.Error("the last rank has a node, and a lower one has none")
	}
	w.delete("x-0")
	w.until("all bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "x") == 5 && len(pods) == 5 })
}

// The API's own constraint, in place of the disabled plugin.
func TestNativeTopologyConstraint(t *testing.T) {
	const zone = "topology.kubernetes.io/zone"
	nodes := fourGPUs(6)
	// Zones lie across the leaves but for the last.
	for i, z := range []string{"a", "b", "a", "b", "c", "c"} {
		nodes[i].Labels[zone] = z
	}
	in := func(name string, pods map[string]*corev1.Pod) map[string]int {
		at := map[string]string{}
		for _, n := range nodes {
			at[n.Name] = n.Labels[zone]
		}
		return groupOf(pods, name, at)
	}
	w, _ := startNative(t, &master{}, nodes...)
	add := func(name string, n, gpus int) {
		g := podGroup(name, int32(n), nil)
		g.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{Topology: []schedulingv1beta1.TopologyConstraint{{Key: zone}}}
		w.add(g)
		for i := range n {
			w.add(grouped(fmt.Sprintf("%s-%d", name, i), gpus, name))
		}
	}
	for _, name := range []string{"x", "y", "z"} {
		add(name, 2, 4)
		pods := w.until("bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, name) == 2 })
		if zones := in(name, pods); len(zones) != 1 {
			t.Errorf("%s is in the zones %v", name, zones)
		}
	}
	w.delete("x-0")
	w.delete("y-0")
	add("v", 2, 4)
	pods := w.until("rejected", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["v-0"]), "rejected by podgroup v: "+zone+" a: 1 of 2 fit, ")
	})
	t.Log(why(pods["v-0"]))
	// A member that is made again goes to the zone of the others.
	w.add(grouped("x-9", 4, "x"))
	pods = w.whole("x", 2)
	if zones := in("x", pods); len(zones) != 1 {
		t.Errorf("x is in the zones %v", zones)
	}
}

func TestNativeNoVictimsForHalfAGroup(t *testing.T) {
	w, _ := startNative(t, &master{}, fourGPUs(2)...)
	for i := range 2 {
		w.add(pod(fmt.Sprintf("low-%d", i), 4, nil))
	}
	w.whole("low", 2)
	high := int32(1000)
	add := func(name string, n int) {
		g := podGroup(name, int32(n), required("leaf"))
		g.Spec.Priority = &high
		w.add(g)
		for i := range n {
			p := grouped(fmt.Sprintf("%s-%d", name, i), 4, name)
			p.Spec.Priority = &high
			w.add(p)
		}
	}
	add("three", 3)
	w.until("rejected", func(pods map[string]*corev1.Pod) bool {
		return strings.Contains(why(pods["three-2"]), "rejected by podgroup three")
	})
	if n := bound(w.pods(), "low"); n != 2 {
		t.Errorf("%d of 2 low pods are left", n)
	}
	add("two", 2)
	w.until("bound once the low ones are gone", func(pods map[string]*corev1.Pod) bool {
		return bound(pods, "two") == 2 && bound(pods, "low") == 0
	})
}

func TestNativeWithoutATree(t *testing.T) {
	m := &master{maxAge: "1s"}
	w, _ := startNative(t, m, fourGPUs(4)...)
	m.set("")
	<-time.After(1500 * time.Millisecond)
	w.group("x", 2, 1, required("leaf"))
	w.group("y", 2, 1, map[string]string{"heddle.dev/gang-required-level": "leaf", "heddle.dev/gang-without-map": "place"})
	w.until("y bound, x waits", func(pods map[string]*corev1.Pod) bool {
		return bound(pods, "y") == 2 && strings.Contains(why(pods["x-0"]), "waits for a topology tree")
	})
	m.set(leaves(2, "n0", "n1", "n2", "n3"))
	w.whole("x", 2)
}

// Everything else is as with the gates off.
func TestNativeGatesChangeNothingElse(t *testing.T) {
	good, bad := node("n0", 4), node("n1", 4)
	good.Annotations = map[string]string{wellknown.GPUTopology: `{"2":{"score":600,"loss":100,"hcas":1}}`}
	bad.Annotations = map[string]string{wellknown.GPUTopology: `{"2":{"score":600,"loss":500,"hcas":1}}`}
	w, at := startNative(t, &master{}, good, bad, node("n2", 4), node("n3", 4), sharedNode("n4", 2))
	w.add(pod("plain", 2, nil))
	pods := w.whole("plain", 1)
	if on := pods["plain"].Spec.NodeName; on != "n0" {
		t.Errorf("plain is on %s", on)
	}
	w.gang("labels", 4, 2, 4)
	pods = w.whole("labels", 4)
	if in := groupOf(pods, "labels", at); len(in) != 1 || in["leaf-01"] != 4 {
		t.Errorf("the gang is in %v", in)
	}
	// Shares for a native group: the GPUs are in the Binding. The keys of a gang
	// on it count for nothing, or it would wait for seven members more.
	w.add(podGroup("shares", 2, nil))
	for i := range 2 {
		p := share(fmt.Sprintf("shares-%d", i), 1, 60, 4)
		p.Labels = gangLabels("other", 9)
		name := "shares"
		p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
		w.add(p)
	}
	pods = w.whole("shares", 2)
	used := map[string]int{}
	for i := range 2 {
		got, err := allocation.ParseAllocation(pods[fmt.Sprintf("shares-%d", i)].Annotations[wellknown.SGPUAllocation])
		if err != nil || len(got.Containers["c"]) != 1 {
			t.Fatalf("shares-%d has %+v, error %v", i, got, err)
		}
		used[got.Containers["c"][0].UUID]++
	}
	if len(used) != 2 {
		t.Errorf("GPUs are used %v", used)
	}
}

// With only the one gate the scheduler asks no plugin where a PodGroup may go: it
// goes by what Kubernetes knows, whole or not at all.
func TestNativeGroupWithoutPlacements(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.GenericWorkload, true)
	w := startFrom(t, documentedNative, args(`"genericWorkload": true`), fourGPUs(2)...)
	w.group("x", 3, 4, nil)
	pods := w.until("x rejected", func(pods map[string]*corev1.Pod) bool { return why(pods["x-0"]) != "" })
	if n := bound(pods, "x"); n > 0 {
		t.Errorf("%d of x have a node", n)
	}
	w.add(node("n2", 4))
	w.whole("x", 3)
}

// A native PodGroup has one gang of labels evicted whole, the younger one: kube-scheduler's own
// preemption knows no such gangs, and would halve two.
func TestNativeGroupPreemptsAWholeGang(t *testing.T) {
	w, _ := startNative(t, &master{}, fourGPUs(4)...)
	for i := range 4 {
		name := []string{"old", "young"}[i%2] // One pod of each in a leaf.
		p := pod(fmt.Sprintf("%s-%d", name, i/2), 4, gangLabels(name, 2))
		p.Spec.NodeName, p.Status.Phase = fmt.Sprintf("n%d", i), corev1.PodRunning
		p.Status.StartTime = new(metav1.NewTime(time.Now().Add(-time.Duration(2-i%2) * time.Hour)))
		w.add(p)
	}
	w.seen()
	high := int32(1000)
	g := podGroup("high", 2, nil)
	g.Spec.Priority = &high
	w.add(g)
	for i := range 2 {
		p := grouped(fmt.Sprintf("high-%d", i), 4, "high")
		p.Spec.Priority = &high
		w.add(p)
	}
	pods := w.whole("high", 2)
	if young, old := bound(pods, "young"), bound(pods, "old"); young != 0 || old != 2 {
		t.Errorf("%d pods of the younger gang are left and %d of the older, want 0 and 2", young, old)
	}
}
