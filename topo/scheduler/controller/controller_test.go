package controller

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	restclient "k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
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

func (*handle) ProfileName() string { return "heddle-scheduler" }

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

// newController is one that does not run, and has seen all pods.
func newController(t *testing.T) *Controller {
	t.Helper()
	nodeConfig := config.Default()
	gpus, topology := sgpu.New(&nodeConfig, slog.New(slog.DiscardHandler), nil), topologyclient.New(topologyclient.Options{})
	c, err := New(Options{
		Plugin: "Heddle", Topology: topology, PodGroups: true, Log: slog.New(slog.DiscardHandler),
		Handle: &handle{
			factory:   informers.NewSharedInformerFactory(fake.NewClientset(), 0),
			activated: map[string]bool{}, waiting: map[types.UID]*waitingPod{},
		},
		Cache: gangcache.New(gangcache.Options{
			Domains: wellknown.DefaultDomains(), GPUs: gpus, Metrics: gangcache.NewMetrics(),
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
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

func object(group string, least int64, labels map[string]string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1alpha1", "kind": "PodGroup", "spec": map[string]any{"minMember": least},
	}}
	o.SetNamespace("default")
	o.SetName("x")
	o.SetLabels(labels)
	return o
}

// An API group that the cluster does not have yet is watched from when it has it. What
// was not seen yet is not missing: nothing is written before, nor in a replica that
// waits.
func TestPodGroupsAreFollowed(t *testing.T) {
	client := fakedynamic.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		resource(wellknown.PodGroupAPI): "PodGroupList", resource(wellknown.PodGroupAPIXK8s): "PodGroupList",
	})
	var exists atomic.Bool
	client.PrependReactor("list", "podgroups", func(clienttesting.Action) (bool, runtime.Object, error) {
		return !exists.Load(), nil, apierrors.NewNotFound(schema.GroupResource{Resource: "podgroups"}, "")
	})
	mine := object(wellknown.PodGroupAPIXK8s, 1, nil)
	mine.SetName("mine")
	if err := client.Tracker().Create(resource(wellknown.PodGroupAPIXK8s), mine, "default"); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := newController(t)
		c.client = client
		c.Leads.Store(false)
		a, b := ownPod("a", gangOf("2"), ""), ownPod("b", map[string]string{wellknown.GangName: "mine"}, "")
		c.Cache.UpdatePod(a)
		c.Cache.UpdatePod(b)
		ctx, stop := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { c.followPodGroups(ctx) })
		written := func(want int) {
			t.Helper()
			<-time.After(2 * time.Minute)
			objects, err := client.Tracker().List(resource(wellknown.PodGroupAPIXK8s), schema.GroupVersionKind{
				Group: wellknown.PodGroupAPIXK8s, Version: wellknown.PodGroupVersion, Kind: "PodGroup",
			}, "default")
			if err != nil {
				t.Fatal(err)
			}
			if list, _ := objects.(*unstructured.UnstructuredList); len(list.Items) != want {
				t.Errorf("%d objects, want %d", len(list.Items), want)
			}
		}
		written(1)
		c.Leads.Store(true)
		written(1)
		if _, reason := c.Cache.Admit(b); reason == "" {
			t.Error("an object is known that cannot be listed")
		}
		exists.Store(true)
		written(2)
		if _, reason := c.Cache.Admit(b); reason != "" {
			t.Errorf("the user's object is not known: %s", reason)
		}
		stop()
		done.Wait()
	})
}

// Replicas that wait fill their caches and are asked for PreEnqueue as well.
func TestLeader(t *testing.T) {
	for _, tt := range []struct {
		name  string
		won   map[string]float64
		cycle bool
		want  bool
	}{
		{name: "it waits", won: map[string]float64{"kube-scheduler": 0}},
		{name: "it won", won: map[string]float64{"kube-scheduler": 1}, want: true},
		{name: "there is no election", won: map[string]float64{"another": 0}, want: true},
		{name: "it schedules", won: map[string]float64{"kube-scheduler": 0}, cycle: true, want: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, registry := newController(t), prometheus.NewRegistry()
			gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "leader_election_master_status", Help: "as client-go's"}, []string{"name"})
			registry.MustRegister(gauge)
			for name, value := range tt.won {
				gauge.WithLabelValues(name).Set(value)
			}
			c.Elections = registry
			c.Leads.Store(tt.cycle)
			if c.elect(time.Second); c.Leads.Load() != (tt.cycle || tt.won["kube-scheduler"] == 1) {
				t.Errorf("at first: %v", c.Leads.Load())
			}
			if c.elect(time.Minute); c.Leads.Load() != tt.want {
				t.Errorf("%v, want %v", c.Leads.Load(), tt.want)
			}
		})
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
	c.expire()
	c.apply()
	for _, w := range h.waiting {
		if w.rejected != "rejected by podgroup x: its gang released all nodes" {
			t.Errorf("%s: %q", w.pod.Name, w.rejected)
		}
	}
}
