package controller

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
	"github.com/heddle-dev/heddle/topo/scheduler/metrics"
	"github.com/heddle-dev/heddle/topo/scheduler/podgroup"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// handle is what of the framework the controller calls.
type handle struct {
	framework.Handle
	factory   informers.SharedInformerFactory
	activated map[string]bool
	waiting   map[types.UID]*waitingPod
}

func (h *handle) SharedInformerFactory() informers.SharedInformerFactory { return h.factory }

func (*handle) KubeConfig() *restclient.Config { return nil }

func (h *handle) Activate(_ logr.Logger, pods map[string]*corev1.Pod) {
	for name := range pods {
		h.activated[name] = true
	}
}

func (h *handle) GetWaitingPod(uid types.UID) framework.WaitingPod {
	if w := h.waiting[uid]; w != nil {
		return w
	}
	return nil
}

func (h *handle) IterateOverWaitingPods(call func(framework.WaitingPod)) {
	for _, w := range h.waiting {
		call(w)
	}
}

func (*handle) EventRecorder() events.EventRecorderLogger { return events.NewFakeRecorder(100) }

type waitingPod struct {
	framework.WaitingPod
	pod      *corev1.Pod
	rejected string
}

func (w *waitingPod) GetPod() *corev1.Pod { return w.pod }

func (w *waitingPod) Reject(_, reason string) bool {
	w.rejected = reason
	return true
}

// registration is that of a handler that has seen all objects, or has not.
type registration struct {
	cache.ResourceEventHandlerRegistration
	synced bool
}

func (r registration) HasSynced() bool { return r.synced }

// newController is one that does not run, and has seen all pods.
func newController(t *testing.T) *Controller {
	t.Helper()
	nodeConfig := config.Default()
	gpus, topology := sgpu.New(&nodeConfig, config.PlacementBinpack), topologyclient.New(topologyclient.Options{})
	m := metrics.New()
	c, err := New(Options{
		Plugin: "Heddle", Topology: topology, GPUs: gpus, Metrics: m, PodGroups: true, Log: slog.New(slog.DiscardHandler),
		Handle: &handle{
			factory:   informers.NewSharedInformerFactory(fake.NewClientset(), 0),
			activated: map[string]bool{}, waiting: map[types.UID]*waitingPod{},
		},
		Cache: gangcache.New(gangcache.Options{
			Domains: wellknown.DefaultDomains(), Scheduler: "heddle-scheduler", GPUs: gpus, Metrics: m,
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	c.pods = registration{synced: true}
	return c
}

func podOf(name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: labels}}
}

// gangOf are the labels of gang x.
func gangOf(least string) map[string]string {
	return map[string]string{wellknown.GangName: "x", wellknown.GangMinAvailable: least}
}

// ownPod is for this scheduler.
func ownPod(name string, labels map[string]string, owner string) *corev1.Pod {
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

func TestPodGroupsOfGangs(t *testing.T) {
	pending := podgroup.Status{Phase: podgroup.Pending}
	bare := podgroup.Gang{ByLabels: true, Create: true, MinMember: 2, Status: pending}
	with := func(how func(*podgroup.Gang)) podgroup.Gang { g := bare; how(&g); return g }
	koordinator := func(name string) *corev1.Pod {
		pod := ownPod(name, nil, "")
		pod.Annotations = map[string]string{wellknown.KoordinatorName: "x", wellknown.KoordinatorMinAvailable: "2", wellknown.KoordinatorWaitingTime: "90s"}
		return pod
	}
	bound := ownPod("b", gangOf("2"), "")
	bound.Spec.NodeName = "gone"
	done := ownPod("a", gangOf("2"), "")
	done.Status.Phase = corev1.PodSucceeded
	elsewhere := podOf("a", gangOf("2"))
	elsewhere.Spec.SchedulerName = "volcano"
	for _, tt := range []struct {
		name   string
		pods   []*corev1.Pod
		object *unstructured.Unstructured
		want   podgroup.Gang
	}{
		{"by labels", []*corev1.Pod{ownPod("a", gangOf("2"), "")}, nil, bare},
		{
			"with one controller",
			[]*corev1.Pod{ownPod("a", gangOf("2"), "job"), ownPod("b", gangOf("2"), "job")},
			nil,
			with(func(g *podgroup.Gang) {
				g.Owner = &metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "job", UID: "job"}
			}),
		},
		{"with two controllers", []*corev1.Pod{ownPod("a", gangOf("2"), "job"), ownPod("b", gangOf("2"), "other")}, nil, bare},
		{"a pod without one", []*corev1.Pod{ownPod("a", gangOf("2"), "job"), ownPod("b", gangOf("2"), "")}, nil, bare},
		{"by Koordinator's annotations", []*corev1.Pod{koordinator("a")}, nil, with(func(g *podgroup.Gang) {
			g.ByLabels, g.Timeout = false, 90*time.Second
		})},
		{
			"contradictory",
			[]*corev1.Pod{ownPod("a", gangOf("2"), ""), ownPod("b", gangOf("3"), "")},
			nil,
			with(func(g *podgroup.Gang) { g.Create = false }),
		},
		{"finished", []*corev1.Pod{done}, nil, with(func(g *podgroup.Gang) {
			g.Create, g.MinMember, g.Status = false, 0, podgroup.Status{Phase: podgroup.Finished, Scheduled: 1, Succeeded: 1}
		})},
		{"on a node that is gone", []*corev1.Pod{bound}, nil, with(func(g *podgroup.Gang) {
			g.Status = podgroup.Status{Phase: podgroup.Unknown, Scheduled: 1}
		})},
		{"for another scheduler", []*corev1.Pod{elsewhere}, nil, with(func(g *podgroup.Gang) { g.Foreign = true })},
		{
			"with an object of its user's",
			[]*corev1.Pod{ownPod("a", gangOf("2"), "")},
			podGroup(gang.APIGroup, 2, nil),
			with(func(g *podgroup.Gang) { g.ByLabels = false }),
		},
		{
			"with a managed object, which is ignored",
			[]*corev1.Pod{ownPod("a", gangOf("2"), "")},
			podGroup(gang.APIGroupXK8s, 7, map[string]string{"app.kubernetes.io/managed-by": "heddle-scheduler"}), bare,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newController(t)
			c.searched.Store(2)
			for _, pod := range tt.pods {
				c.Cache.UpdatePod(pod)
			}
			if o := tt.object; o != nil {
				c.podGroup(strings.TrimSuffix(o.GetAPIVersion(), "/v1alpha1"), o, podgroup.Managed(o))
			}
			tt.want.Key = types.NamespacedName{Namespace: "default", Name: "x"}
			got, ok := c.podGroups()
			if diff := cmp.Diff(map[types.NamespacedName]*podgroup.Gang{tt.want.Key: &tt.want}, got); !ok || diff != "" {
				t.Errorf("%v (-want +got):\n%s", ok, diff)
			}
		})
	}
}

// What was not seen yet is not missing: nothing is written before.
func TestNothingIsWrittenTooEarly(t *testing.T) {
	for _, tt := range []struct {
		name          string
		searched      int32
		synced, leads bool
		want          bool
	}{
		{"before both API groups were looked for", 1, true, true, false},
		{"before all pods were seen", 2, false, true, false},
		{"in a replica that waits", 2, true, false, false},
		{"after all that", 2, true, true, true},
	} {
		c := newController(t)
		c.searched.Store(tt.searched)
		c.pods = registration{synced: tt.synced}
		c.leader.won = func() (bool, bool) { return false, true }
		c.leader.leads.Store(tt.leads)
		if _, ok := c.podGroups(); ok != tt.want {
			t.Errorf("%s: %v", tt.name, ok)
		}
	}
}

// Replicas that wait fill their caches and are asked for PreEnqueue as well.
func TestLeader(t *testing.T) {
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
				c := newController(t)
				c.leader.won = func() (bool, bool) { return tt.leads, tt.known }
				if c.leader.update(time.Now(), true); c.leader.leading() != (tt.leads && tt.known) {
					t.Errorf("at first: %v", c.leader.leading())
				}
				if tt.cycle {
					c.Scheduling()
				}
				<-time.After(time.Minute)
				c.leader.update(time.Now(), true)
				if c.leader.leading() != tt.want {
					t.Errorf("%v, want %v", c.leader.leading(), tt.want)
				}
			})
		})
	}
}

// A managed PodGroup only repeats the pods, perhaps late: neither what it contains nor
// its deletion changes the gang.
func TestManagedPodGroupChangesNoGang(t *testing.T) {
	c := newController(t)
	a := ownPod("a", gangOf("1"), "")
	c.Cache.UpdatePod(a)
	object := podGroup(gang.APIGroupXK8s, 3, map[string]string{"app.kubernetes.io/managed-by": podgroup.Manager})
	for _, gone := range []bool{false, true} {
		c.podGroup(gang.APIGroupXK8s, object, gone || podgroup.Managed(object))
		if _, reason := c.Cache.Admit(a); reason != "" {
			t.Errorf("the gang waits: %s", reason)
		}
	}
}

// A pod that waits in Permit goes on, or back to the queue with the reason.
func TestEffectsAreApplied(t *testing.T) {
	c := newController(t)
	h, _ := c.Handle.(*handle)
	a, b := ownPod("a", gangOf("2"), ""), ownPod("b", gangOf("2"), "")
	for _, pod := range []*corev1.Pod{a, b} {
		c.Cache.UpdatePod(pod)
		w := &waitingPod{pod: pod}
		h.waiting[pod.UID] = w
	}
	c.apply()
	if !h.activated["default/a"] || !h.activated["default/b"] {
		t.Errorf("activated %v", h.activated)
	}
	// Neither holds a node: the gang released them while they were on their way.
	c.expire(time.Now())
	c.apply()
	for _, w := range h.waiting {
		if w.rejected != "rejected by podgroup x: its gang released all nodes" {
			t.Errorf("%s: %q", w.pod.Name, w.rejected)
		}
	}
}
