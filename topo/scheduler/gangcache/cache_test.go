package gangcache

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

func newCache() *Cache {
	c := config.Default()
	return New(Options{
		Domains: wellknown.DefaultDomains(), GPUs: sgpu.New(&c, slog.New(slog.DiscardHandler), nil), Metrics: NewMetrics(),
	})
}

func podOf(name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: labels}}
}

func in(name, least string) map[string]string {
	labels := map[string]string{wellknown.GangName: name}
	if least != "" {
		labels[wellknown.GangMinAvailable] = least
	}
	return labels
}

func admit(c *Cache, pod *corev1.Pod) string {
	_, reason := c.Admit(pod)
	return reason
}

// cycle is a pod's scheduling cycle with the test's plans.
func cycle(c *Cache, pod *corev1.Pod, plan func(unit []planner.Gang) planner.Plan) (node, rejection string) {
	for {
		s := c.Snapshot(pod)
		current := true
		for _, unit := range s.Units {
			made := plan(unit)
			s, current = c.Commit(pod, unit, &made)
		}
		if current {
			return s.Node, s.Rejection
		}
	}
}

// place tries a pod with plans that give pods these nodes; with none there is no room.
func place(c *Cache, pod *corev1.Pod, nodes map[string]string) (node, rejection string) {
	return cycle(c, pod, func(unit []planner.Gang) planner.Plan {
		if nodes == nil {
			return planner.Plan{Reason: "no room"}
		}
		plan := planner.Plan{Places: make([]planner.Place, len(unit))}
		for i := range unit {
			for _, m := range unit[i].Members {
				plan.Places[i].Nodes = append(plan.Places[i].Nodes, nodes[m.Pod.Name])
			}
		}
		return plan
	})
}

// commit gives pods nodes as a plan does.
func commit(t *testing.T, c *Cache, pod *corev1.Pod, nodes map[string]string) {
	t.Helper()
	if node, rejection := place(c, pod, nodes); node != nodes[pod.Name] {
		t.Fatalf("on %q: %s", node, rejection)
	}
}

func activated(c *Cache) map[string]bool {
	out := map[string]bool{}
	for name := range c.Effects().Activate {
		out[name] = true
	}
	return out
}

func TestAdmitWaitsForTheGang(t *testing.T) {
	c := newCache()
	a, b := podOf("a", in("x", "2")), podOf("b", in("x", "2"))
	if got := admit(c, podOf("plain", nil)); got != "" {
		t.Errorf("a pod of no gang: %s", got)
	}
	if got := admit(c, a); got != "podgroup x waits for pods: 1 of 2 exist" {
		t.Errorf("the first: %s", got)
	}
	if got := admit(c, b); got != "" {
		t.Errorf("the last: %s", got)
	}
	if diff := cmp.Diff(map[string]bool{"default/a": true, "default/b": true}, activated(c)); diff != "" {
		t.Errorf("activated (-want +got):\n%s", diff)
	}
	c.DeletePod(a)
	if got := admit(c, b); got == "" {
		t.Error("a deleted pod completes the gang")
	}
}

func setPodGroup(t *testing.T, c *Cache, group string, least int64) {
	t.Helper()
	spec, err := gang.ReadObject(map[string]any{
		"metadata": map[string]any{"name": "x", "namespace": "default"}, "spec": map[string]any{"minMember": least},
	}, c.Domains)
	if err != nil {
		t.Fatal(err)
	}
	c.SetPodGroup(group, spec.Key, &spec, nil)
}

func TestPodGroupObjects(t *testing.T) {
	c := newCache()
	key := types.NamespacedName{Namespace: "default", Name: "x"}
	a := podOf("a", in("x", ""))
	if got := admit(c, a); !strings.Contains(got, "no PodGroup object") {
		t.Errorf("without an object: %s", got)
	}
	setPodGroup(t, c, wellknown.PodGroupAPI, 2)
	if got := admit(c, a); !strings.Contains(got, "1 of 2 exist") {
		t.Errorf("with one for two: %s", got)
	}
	setPodGroup(t, c, wellknown.PodGroupAPI, 1)
	if got := activated(c); !got["default/a"] || admit(c, a) != "" {
		t.Errorf("with one for one: %s, activated %v", admit(c, a), got)
	}
	setPodGroup(t, c, wellknown.PodGroupAPIXK8s, 3)
	if _, rejection := place(c, a, nil); !strings.Contains(rejection, "have minMember 1 and 3") {
		t.Errorf("two objects: %q", rejection)
	}
	c.SetPodGroup(wellknown.PodGroupAPIXK8s, key, nil, nil)
	c.SetPodGroup(wellknown.PodGroupAPI, key, nil, nil)
	if got := admit(c, a); got == "" {
		t.Error("deleted objects still have minMember")
	}
	c.DeletePod(a)
	if len(c.byKey) != 0 || len(c.members) != 0 {
		t.Errorf("the cache keeps %v", c.byKey)
	}
}

func TestPermitIsAllOrNothing(t *testing.T) {
	for _, tt := range []struct {
		name     string
		third    func(c *Cache, pod *corev1.Pod)
		allowed  int
		rejected string
		stages   map[types.UID]stage
	}{
		{
			"the third comes", func(c *Cache, pod *corev1.Pod) {
				if wait, rejection := c.Permit(pod, "o"); rejection != "" || wait != 0 {
					panic(rejection)
				}
			},
			2, "",
			map[types.UID]stage{"a": released, "b": released, "c": released},
		},
		{
			"the third fails", func(c *Cache, pod *corev1.Pod) { c.Unreserve(pod, "o") },
			0, "rejected by podgroup x: member c lost its place on node o",
			map[types.UID]stage{"a": pending, "b": pending, "c": pending},
		},
		{
			"the third is deleted", func(c *Cache, pod *corev1.Pod) { c.DeletePod(pod) },
			0, "rejected by podgroup x: podgroup x waits for pods: 2 of 3 exist",
			map[types.UID]stage{"a": pending, "b": pending},
		},
		{
			"the deadline passes", func(c *Cache, _ *corev1.Pod) {
				<-time.After(time.Hour)
				c.Expire(nil)
			},
			0, "rejected by podgroup x: 2 of 3 had a node after 1m0s",
			map[types.UID]stage{"a": pending, "b": pending, "c": pending},
		},
		{
			"a node is cordoned", func(c *Cache, _ *corev1.Pod) {
				c.NodeChanged("m", &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}})
			},
			0, "rejected by podgroup x: member b lost its place on node m: cordoned",
			map[types.UID]stage{"a": pending, "b": pending, "c": pending},
		},
		{
			"the node of the third is deleted", func(c *Cache, _ *corev1.Pod) { c.NodeChanged("o", nil) },
			0, "rejected by podgroup x: member c lost its place on node o: deleted",
			map[types.UID]stage{"a": pending, "b": pending, "c": pending},
		},
		{
			"the minimum changes", func(c *Cache, pod *corev1.Pod) { c.UpdatePod(podOf(pod.Name, in("x", "2"))) },
			0, "rejected by podgroup x: min-available: its members have 3 and 2",
			map[types.UID]stage{"a": pending, "b": pending, "c": pending},
		},
		{
			"a member becomes unreadable", func(c *Cache, pod *corev1.Pod) {
				pod = pod.DeepCopy()
				pod.Annotations = map[string]string{wellknown.GangGroups: "[{"}
				c.UpdatePod(pod)
			},
			0, "rejected by podgroup x: annotation " + wellknown.GangGroups + `: invalid list "[{": must be JSON such as ` +
				`["namespace/gang-a", "namespace/gang-b"]`,
			map[types.UID]stage{"a": pending, "b": pending, "c": pending},
		},
		{
			"a member leaves for another gang", func(c *Cache, pod *corev1.Pod) {
				pod = pod.DeepCopy()
				pod.Labels = in("y", "3")
				c.UpdatePod(pod)
			},
			0, "rejected by podgroup x: podgroup x waits for pods: 2 of 3 exist",
			map[types.UID]stage{"a": pending, "b": pending},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCache()
				pods := []*corev1.Pod{podOf("a", in("x", "3")), podOf("b", in("x", "3")), podOf("c", in("x", "3"))}
				for _, pod := range pods {
					admit(c, pod)
				}
				nodes := map[string]string{"a": "n", "b": "m", "c": "o"}
				commit(t, c, pods[0], nodes)
				g := c.members["a"].gang
				for _, pod := range pods[:2] {
					if wait, rejection := c.Permit(pod, nodes[pod.Name]); wait < g.spec.Timeout {
						t.Fatalf("permit waits for %s: %s", wait, rejection)
					}
				}
				tt.third(c, pods[2])
				stages := map[types.UID]stage{}
				for uid, m := range g.members {
					stages[uid] = m.stage
				}
				if diff := cmp.Diff(tt.stages, stages); diff != "" {
					t.Errorf("stages (-want +got):\n%s", diff)
				}
				effects := c.Effects()
				for _, pod := range pods[:2] {
					if got := effects.Reject[pod.UID]; got != tt.rejected {
						t.Errorf("%s is rejected with %q, want %q", pod.Name, got, tt.rejected)
					}
				}
				if len(effects.Allow) != tt.allowed {
					t.Errorf("allowed %v", effects.Allow)
				}
				if len(c.Reservations()) > 0 {
					t.Errorf("reservations are left: %v", c.Reservations())
				}
			})
		})
	}
}

func TestPermitOnAnotherNode(t *testing.T) {
	c := newCache()
	a := podOf("a", in("x", "1"))
	admit(c, a)
	commit(t, c, a, map[string]string{"a": "n"})
	if _, rejection := c.Permit(a, "m"); rejection == "" {
		t.Error("a member is permitted on a node that its plan does not have")
	}
	if c.Unreserve(a, "m"); len(c.Reservations()) == 0 {
		t.Error("the node of the plan is free")
	}
}

// A member that is bound when the scheduler begins is of the class of the others.
func TestBoundMembersAreOfOneClass(t *testing.T) {
	c := newCache()
	onNode := podOf("a-0", in("a", "2"))
	onNode.Spec.NodeName = "n0"
	c.UpdatePod(onNode)
	waiting := podOf("a-1", in("a", "2"))
	c.UpdatePod(waiting)
	if m := c.Snapshot(waiting).Units[0][0].Members; len(m) != 2 || m[0].Node != "n0" || m[0].Class.Key != m[1].Class.Key {
		t.Errorf("members %+v", m)
	}
}

func TestOnlyTheLeaderOfARejectedGangIsWorthTrying(t *testing.T) {
	c := newCache()
	a, b := podOf("a", in("x", "2")), podOf("b", in("x", "2"))
	admit(c, a)
	admit(c, b)
	if _, rejection := place(c, b, nil); rejection != "rejected by podgroup x: no room" {
		t.Errorf("%q", rejection)
	}
	if _, rejection := place(c, a, map[string]string{"a": "n", "b": "n"}); rejection != "rejected by podgroup x: no room" {
		t.Errorf("the other member: %q", rejection)
	}
	if c.WorthTrying(a) || !c.WorthTrying(b) || !c.WorthTrying(podOf("plain", nil)) {
		t.Error("not the leader alone")
	}
	c.Effects() // Those of before.
	c.RetryAll()
	if diff := cmp.Diff(map[string]bool{"default/b": true}, activated(c)); diff != "" {
		t.Errorf("activated (-want +got):\n%s", diff)
	}
	c.DeletePod(b)
	if m := c.members["a"]; m.gang.rejected.leader != m {
		t.Errorf("the leader is %v once b is gone", m.gang.rejected.leader)
	}
}

// What comes while the leader is in its cycle wakes none of the others, and its plan may not know it.
func TestTheOthersAreTriedOnceTheLeaderHasANode(t *testing.T) {
	c := newCache()
	a, b, later := podOf("a", in("x", "1")), podOf("b", in("x", "1")), podOf("later", in("x", "1"))
	for _, pod := range []*corev1.Pod{a, b, later} {
		admit(c, pod)
	}
	for _, pod := range []*corev1.Pod{b, a, later} {
		if _, rejection := place(c, pod, nil); rejection != "rejected by podgroup x: no room" {
			t.Errorf("%s: %q", pod.Name, rejection)
		}
	}
	c.Effects() // Those of before.
	if node, rejection := place(c, b, map[string]string{"b": "n"}); node != "n" || rejection != "" {
		t.Errorf("the leader is on %q: %s", node, rejection)
	}
	if diff := cmp.Diff(map[string]bool{"default/a": true, "default/later": true}, activated(c)); diff != "" {
		t.Errorf("activated (-want +got):\n%s", diff)
	}
}

// A gang that changes while it is planned keeps nothing of the plan.
func TestOutdatedPlan(t *testing.T) {
	c := newCache()
	a, b := podOf("a", in("x", "1")), podOf("b", in("x", "1"))
	admit(c, a)
	times := 0
	node, rejection := cycle(c, a, func(unit []planner.Gang) planner.Plan {
		if times++; times == 1 {
			admit(c, b)
		} else if len(c.Reservations()) > 0 || len(unit[0].Members) != 2 {
			t.Errorf("an outdated plan is committed: %v", c.Reservations())
		}
		return planner.Plan{Places: []planner.Place{{Nodes: make([]string, len(unit[0].Members))}}}
	})
	if times != 2 || node != "" || rejection == "" {
		t.Errorf("planned %d times, on %q: %s", times, node, rejection)
	}
}

// The age of a gang is that of its first pod, or of its PodGroup, for all of its pods. The time that a pod says it
// runs for changes nothing.
func TestQueueKey(t *testing.T) {
	c := newCache()
	now := time.Now().Truncate(time.Second)
	of := func(name string, labels map[string]string, age time.Duration) QueueKey {
		pod := podOf(name, labels)
		pod.CreationTimestamp = metav1.NewTime(now.Add(-age))
		admit(c, pod)
		return c.QueueKey(pod)
	}
	of("old", in("x", "2"), time.Hour)
	young, plain := of("young", in("x", "2"), 0), of("plain", nil, time.Minute)
	if old := c.QueueKey(podOf("old", nil)); young != old || young.Compare(&plain) > 0 {
		t.Errorf("the young member's key is %v, the old one's %v, that of a pod between %v", young, old, plain)
	}
	important := plain
	if important.Priority = 1; important.Compare(&young) > 0 {
		t.Error("a higher priority comes later")
	}
	brief := podOf("plain", nil)
	brief.CreationTimestamp, brief.Annotations = metav1.NewTime(plain.Created), map[string]string{wellknown.ExpectedDuration: "1s"}
	if key := c.QueueKey(brief); key != plain {
		t.Errorf("a pod that runs for a second has the key %v, and without a word %v", key, plain)
	}
}
