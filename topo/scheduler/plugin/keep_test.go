package plugin

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/podgroup"
)

// ourPod is for this scheduler.
func ourPod(name string, labels map[string]string, owner string) *corev1.Pod {
	pod := podOf(name, labels)
	pod.Spec.SchedulerName = "heddle-scheduler"
	if owner != "" {
		pod.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "batch/v1", Kind: "Job", Name: owner, UID: types.UID(owner), Controller: new(true), BlockOwnerDeletion: new(true)},
		}
	}
	return pod
}

func podGroup(group string, least int64, labels map[string]string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1alpha1", "kind": "PodGroup", "spec": map[string]any{"minMember": least},
	}}
	o.SetNamespace("default")
	o.SetName("x")
	o.SetLabels(labels)
	return o
}

func TestDescribedGangs(t *testing.T) {
	pending := podgroup.Status{Phase: podgroup.Pending}
	bare := podgroup.Gang{Labels: true, Make: true, MinMember: 2, Status: pending}
	with := func(how func(*podgroup.Gang)) podgroup.Gang { g := bare; how(&g); return g }
	koordinator := func(name string) *corev1.Pod {
		pod := ourPod(name, nil, "")
		pod.Annotations = map[string]string{wellknown.KoordinatorName: "x", wellknown.KoordinatorMinAvailable: "2", wellknown.KoordinatorWaitingTime: "90s"}
		return pod
	}
	bound := ourPod("b", of("x", "2"), "")
	bound.Spec.NodeName = "gone"
	done := ourPod("a", of("x", "2"), "")
	done.Status.Phase = corev1.PodSucceeded
	elsewhere := podOf("a", of("x", "2"))
	elsewhere.Spec.SchedulerName = "volcano"
	for _, tt := range []struct {
		name   string
		pods   []*corev1.Pod
		object *unstructured.Unstructured
		want   podgroup.Gang
	}{
		{"by labels", []*corev1.Pod{ourPod("a", of("x", "2"), "")}, nil, bare},
		{
			"with one controller",
			[]*corev1.Pod{ourPod("a", of("x", "2"), "job"), ourPod("b", of("x", "2"), "job")},
			nil,
			with(func(g *podgroup.Gang) {
				g.Owner = &metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "job"}
			}),
		},
		{"with two controllers", []*corev1.Pod{ourPod("a", of("x", "2"), "job"), ourPod("b", of("x", "2"), "other")}, nil, bare},
		{"a pod without one", []*corev1.Pod{ourPod("a", of("x", "2"), "job"), ourPod("b", of("x", "2"), "")}, nil, bare},
		{"by Koordinator's annotations", []*corev1.Pod{koordinator("a")}, nil, with(func(g *podgroup.Gang) {
			g.Labels, g.Timeout = false, 90*time.Second
		})},
		{
			"contradictory",
			[]*corev1.Pod{ourPod("a", of("x", "2"), ""), ourPod("b", of("x", "3"), "")},
			nil,
			with(func(g *podgroup.Gang) { g.Make = false }),
		},
		{"finished", []*corev1.Pod{done}, nil, with(func(g *podgroup.Gang) {
			g.Make, g.MinMember, g.Status = false, 0, podgroup.Status{Phase: podgroup.Finished, Scheduled: 1, Succeeded: 1}
		})},
		{"on a node that is gone", []*corev1.Pod{bound}, nil, with(func(g *podgroup.Gang) {
			g.Status = podgroup.Status{Phase: podgroup.Unknown, Scheduled: 1}
		})},
		{"for another scheduler", []*corev1.Pod{elsewhere}, nil, with(func(g *podgroup.Gang) { g.Theirs = true })},
		{
			"with an object of its user's",
			[]*corev1.Pod{ourPod("a", of("x", "2"), "")},
			podGroup(gang.APIGroup, 2, nil),
			with(func(g *podgroup.Gang) { g.Labels = false }),
		},
		{
			"with an object of ours, which is never believed",
			[]*corev1.Pod{ourPod("a", of("x", "2"), "")},
			podGroup(gang.APIGroupXK8s, 7, map[string]string{"app.kubernetes.io/managed-by": "heddle-scheduler"}), bare,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, _ := quiet(t)
			p.synced = nil // Its informers do not run.
			p.looked.Store(groups)
			for _, pod := range tt.pods {
				p.come(pod)
			}
			if tt.object != nil {
				p.object(strings.TrimSuffix(tt.object.GetAPIVersion(), "/v1alpha1"), tt.object, false)
			}
			tt.want.Key = types.NamespacedName{Namespace: "default", Name: "x"}
			got, ok := p.described()
			if diff := cmp.Diff(map[types.NamespacedName]*podgroup.Gang{tt.want.Key: &tt.want}, got); !ok || diff != "" {
				t.Errorf("%v (-want +got):\n%s", ok, diff)
			}
		})
	}
}

// What was not seen yet is not missing: nothing is made or deleted before.
func TestNothingIsWrittenTooEarly(t *testing.T) {
	p, _ := quiet(t)
	seen := false
	p.synced = func() bool { return seen }
	p.election = func() (bool, bool) { return false, true }
	ready := func() bool {
		_, ok := p.described()
		return ok
	}
	p.looked.Store(groups - 1)
	p.led.Store(true)
	seen = true
	if ready() {
		t.Error("before both API groups were looked for")
	}
	p.looked.Store(groups)
	seen = false
	if ready() {
		t.Error("before all pods were seen")
	}
	seen = true
	p.led.Store(false)
	if ready() {
		t.Error("in a replica that waits")
	}
	p.led.Store(true)
	if !ready() {
		t.Error("never")
	}
}

// Replicas that wait fill their cache and are asked for PreEnqueue as well.
func TestOnlyTheLeaderTells(t *testing.T) {
	for _, tt := range []struct {
		name         string
		leads, known bool
		cycle        bool
		want         bool
	}{
		{name: "it waits", known: true},
		{name: "it won", leads: true, known: true, want: true},
		{name: "there is no election", want: true},
		{name: "it schedules", known: true, cycle: true, want: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, _ := quiet(t)
				p.synced = nil
				p.election = func() (bool, bool) { return tt.leads, tt.known }
				if p.inquire(time.Now()); p.leading() != (tt.leads && tt.known) {
					t.Errorf("at first: %v", p.leading())
				}
				if tt.cycle {
					_, _ = p.PreFilter(t.Context(), state{}, podOf("plain", nil), nil)
				}
				<-time.After(time.Minute)
				p.inquire(time.Now())
				<-time.After(time.Minute)
				p.inquire(time.Now())
				if p.leading() != tt.want {
					t.Errorf("%v, want %v", p.leading(), tt.want)
				}
			})
		})
	}
}

// A PodGroup that goes away in mid-flight takes the gang's number with it: what
// its members hold is free at once, and they wait for somebody to say it again.
func TestPodGroupDeletedInMidFlight(t *testing.T) {
	p, h := quiet(t)
	a, b := podOf("a", of("x", "")), podOf("b", of("x", ""))
	h.known(t, a, b)
	object := podGroup(gang.APIGroupXK8s, 2, nil)
	p.object(gang.APIGroupXK8s, object, false)
	for _, pod := range []*corev1.Pod{a, b} {
		p.PreEnqueue(t.Context(), pod)
	}
	p.planOf(p.book.of["a"], map[types.UID]string{"a": "n", "b": "n"})
	if s := p.Reserve(t.Context(), state{}, a, "n"); !s.IsSuccess() {
		t.Fatal(s)
	}
	if _, wait := p.Permit(t.Context(), state{}, a, "n"); wait == 0 {
		t.Fatal("one of two is let go")
	}
	w := &waitingPod{pod: a}
	h.waiting["a"] = w
	p.object(gang.APIGroupXK8s, object, true)
	if len(p.book.promises) > 0 || !strings.Contains(w.verdict, "no PodGroup object says it") {
		t.Errorf("promises %v, and who waits is told %q", p.book.promises, w.verdict)
	}
	if s := p.PreEnqueue(t.Context(), b); s.IsSuccess() {
		t.Error("a gang of no size is tried")
	}
	p.object(gang.APIGroupXK8s, object, false)
	if s := p.PreEnqueue(t.Context(), b); !s.IsSuccess() {
		t.Errorf("it is there again: %v", s)
	}
}

// One that we made only repeats the pods, perhaps late: nobody notices what it
// says, or that it goes.
func TestOurPodGroupDeletedInMidFlight(t *testing.T) {
	p, h := quiet(t)
	a, b := podOf("a", of("x", "2")), podOf("b", of("x", "2"))
	h.known(t, a, b)
	object := podGroup(gang.APIGroupXK8s, 3, map[string]string{"app.kubernetes.io/managed-by": podgroup.Manager})
	p.object(gang.APIGroupXK8s, object, false)
	for _, pod := range []*corev1.Pod{a, b} {
		p.PreEnqueue(t.Context(), pod)
	}
	p.planOf(p.book.of["a"], map[types.UID]string{"a": "n", "b": "n"})
	if s := p.Reserve(t.Context(), state{}, a, "n"); !s.IsSuccess() {
		t.Fatal(s)
	}
	w := &waitingPod{pod: a}
	h.waiting["a"] = w
	p.object(gang.APIGroupXK8s, object, false)
	p.object(gang.APIGroupXK8s, object, true)
	if len(p.book.promises["n"]) != 2 || w.verdict != "" {
		t.Errorf("promises %v, and who waits is told %q", p.book.promises, w.verdict)
	}
}

func TestGroupsNamingGangsThatNeverCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := quiet(t)
		a := podOf("a", of("x", "1"))
		a.Annotations = map[string]string{wellknown.GangGroups: `["default/x", "default/never"]`}
		h.known(t, a)
		const why = "podgroup x waits for podgroup default/never of its groups: there is none"
		if s := p.PreEnqueue(t.Context(), a); s.Message() != why {
			t.Errorf("%v", s)
		}
		if p.notice(); len(h.events) > 0 {
			t.Errorf("at once: %v", h.events)
		}
		<-time.After(incompleteFor)
		p.notice()
		p.notice()
		if diff := cmp.Diff([]string{"a GangIncomplete " + why}, h.events); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		// It comes after all.
		never := podOf("b", of("never", "1"))
		never.Annotations = a.Annotations
		h.known(t, never)
		p.PreEnqueue(t.Context(), never)
		if s := p.PreEnqueue(t.Context(), a); !s.IsSuccess() {
			t.Errorf("with the other: %v", s)
		}
	})
}
