package controller

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
)

func key() types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: "x"}
}

func job(uid string) *metav1.OwnerReference {
	return &metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: uid, UID: types.UID(uid)}
}

// labeled returns a gang of at least 3 pods that labels describe.
func labeled() *podGroup {
	return &podGroup{
		Gang: gangcache.Gang{Key: key(), ByLabels: true, Certain: true, MinMember: 3}, State: gang.State{Phase: gang.Queued},
	}
}

// status is that of a PodGroup.
type status struct {
	Phase                                 string
	Scheduled, Running, Succeeded, Failed int64
}

func (s status) fields() map[string]any {
	return map[string]any{
		"phase": s.Phase, "scheduled": s.Scheduled, "running": s.Running, "succeeded": s.Succeeded, "failed": s.Failed,
	}
}

func TestStatusOf(t *testing.T) {
	for _, tt := range []struct {
		state gang.State
		want  status
	}{
		{gang.State{Phase: gang.Queued}, status{Phase: "Pending"}},
		{gang.State{Phase: gang.Queued, Bound: 1}, status{Phase: "Scheduling", Scheduled: 1}},
		{gang.State{Phase: gang.Starting, Bound: 3, Running: 1}, status{Phase: "Scheduled", Scheduled: 3, Running: 1}},
		{gang.State{Phase: gang.Running, Bound: 2, Running: 2, Succeeded: 1}, status{Phase: "Running", Scheduled: 3, Running: 2, Succeeded: 1}},
		{gang.State{Phase: gang.Unknown, Bound: 2, Running: 2}, status{Phase: "Unknown", Scheduled: 2, Running: 2}},
		{gang.State{Phase: gang.Unknown, Failed: 1, Running: 2, Bound: 2}, status{Phase: "Failed", Scheduled: 2, Running: 2, Failed: 1}},
		{gang.State{Phase: gang.Succeeded, Succeeded: 3}, status{Phase: "Finished", Scheduled: 3, Succeeded: 3}},
	} {
		if diff := cmp.Diff(tt.want.fields(), (&podGroup{State: tt.state}).status()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.state.Phase, diff)
		}
	}
}

// rig is a reconciler with an API server in memory.
type rig struct {
	*testing.T
	*reconciler
	api   *fake.FakeDynamicClient
	gangs map[types.NamespacedName]*podGroup
	at    time.Time
}

func newRig(t *testing.T) *rig {
	t.Helper()
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{resource(wellknown.PodGroupAPIXK8s): "PodGroupList"})
	return &rig{
		T: t, api: client, gangs: map[types.NamespacedName]*podGroup{}, at: time.Unix(1e9, 0),
		reconciler: &reconciler{client: client.Resource(resource(wellknown.PodGroupAPIXK8s)), log: slog.New(slog.DiscardHandler)},
	}
}

// after runs a round some time later, and returns the object x.
func (r *rig) after(d time.Duration) map[string]any {
	r.Helper()
	r.at = r.at.Add(d)
	all, err := r.api.Resource(resource(wellknown.PodGroupAPIXK8s)).List(r.Context(), metav1.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for i := range all.Items {
		objects = append(objects, &all.Items[i])
	}
	r.api.ClearActions()
	r.round(r.Context(), r.at, r.gangs, objects)
	o, err := r.api.Resource(resource(wellknown.PodGroupAPIXK8s)).Namespace("default").Get(r.Context(), "x", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		r.Fatal(err)
	}
	return o.Object
}

func (r *rig) writes() (n int) {
	for _, a := range r.api.Actions() {
		if verb := a.GetVerb(); verb != "list" && verb != "get" {
			n++
		}
	}
	return n
}

func TestObjectLifecycle(t *testing.T) {
	r := newRig(t)
	g := labeled()
	g.Owner, g.Timeout = job("a"), 1500*time.Millisecond
	r.gangs[key()] = g
	want := map[string]any{
		"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
		"metadata": map[string]any{
			"name": "x", "namespace": "default", "labels": map[string]any{managedBy: manager},
			"ownerReferences": []any{map[string]any{"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "a"}},
		},
		"spec": map[string]any{"minMember": int64(3), "scheduleTimeoutSeconds": int64(2)},
	}
	if diff := cmp.Diff(want, r.after(publishEvery)); diff != "" {
		t.Fatalf("created (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(status{Phase: "Pending"}.fields(), r.after(publishEvery)["status"]); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if r.after(publishEvery); r.writes() != 0 {
		t.Errorf("nothing changed, and it writes: %v", r.api.Actions())
	}
	g.State = gang.State{Phase: gang.Running, Bound: 3, Running: 3}
	if diff := cmp.Diff(status{Phase: "Running", Scheduled: 3, Running: 3}.fields(), r.after(publishEvery)["status"]); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	g.MinMember = 2
	if spec, _ := r.after(publishEvery)["spec"].(map[string]any); spec["minMember"] != int64(2) {
		t.Errorf("spec %v", spec)
	}
	delete(r.gangs, key())
	if got := r.after(publishEvery); got != nil {
		t.Errorf("it stays: %v", got)
	}
}

func TestGangsWithoutAnObject(t *testing.T) {
	for name, change := range map[string]func(*podGroup){
		"Koordinator's, or an object of the user's": func(g *podGroup) { g.ByLabels = false },
		"finished, or its members contradict":       func(g *podGroup) { g.Certain = false },
		"for another scheduler":                     func(g *podGroup) { g.Foreign = true },
	} {
		r := newRig(t)
		r.gangs[key()] = labeled()
		change(r.gangs[key()])
		if got := r.after(publishEvery); got != nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A user's object gets a status, and nothing else.
func TestObjectOfAUser(t *testing.T) {
	r := newRig(t)
	if err := r.api.Tracker().Create(resource(wellknown.PodGroupAPIXK8s), object(wellknown.PodGroupAPIXK8s, 7, nil), "default"); err != nil {
		t.Fatal(err)
	}
	g := labeled()
	g.ByLabels = false
	r.gangs[key()] = g
	got := r.after(publishEvery)
	if diff := cmp.Diff(map[string]any{"minMember": int64(7)}, got["spec"]); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(status{Phase: "Pending"}.fields(), got["status"]); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	delete(r.gangs, key())
	if r.after(publishEvery) == nil {
		t.Error("it is deleted")
	}
}

// A status that a CRD's schema drops is written once.
func TestStatusDroppedBySchema(t *testing.T) {
	r := newRig(t)
	r.gangs[key()] = labeled()
	r.api.PrependReactor("patch", "podgroups", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &unstructured.Unstructured{Object: map[string]any{}}, nil
	})
	r.after(publishEvery)
	if r.after(publishEvery); r.writes() != 1 {
		t.Errorf("%d writes of the status", r.writes())
	}
	if r.after(publishEvery); r.writes() != 0 {
		t.Error("it writes what it wrote")
	}
}

func TestFailedWrites(t *testing.T) {
	group := schema.GroupResource{Group: wellknown.PodGroupAPIXK8s, Resource: wellknown.PodGroups}
	terminating := apierrors.NewForbidden(group, "x", errors.New("being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for _, tt := range []struct {
		name string
		err  error
		next time.Duration
	}{
		{"another client was faster", apierrors.NewAlreadyExists(group, "x"), publishEvery},
		{"the namespace is terminating", terminating, publishEvery},
		{"forbidden", apierrors.NewForbidden(group, "x", errors.New("no")), retryAfter + 1},
		{"internal error", apierrors.NewInternalError(errors.New("x")), retryAfter + 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.gangs[key()] = labeled()
			r.api.PrependReactor("create", "podgroups", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, tt.err
			})
			if r.after(publishEvery); r.writes() != 1 {
				t.Fatal("it does not try")
			}
			if r.after(tt.next - 2); r.writes() != 0 && tt.next > publishEvery {
				t.Error("it tries again at once")
			}
			if r.after(2); r.writes() != 1 {
				t.Errorf("it does not try again after %s", tt.next)
			}
		})
	}
}
