package controller

import (
	"context"
	"errors"
	"log/slog"
	"maps"
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

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

func job(uid string) *metav1.OwnerReference {
	return &metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: uid, UID: types.UID(uid)}
}

// labeled is a gang that labels describe.
func labeled(least int) *podGroup {
	return &podGroup{
		Gang: gangcache.Gang{Key: key("x"), ByLabels: true, Certain: true, MinMember: least}, State: gang.State{Phase: gang.Queued},
	}
}

// written is the object made for a gang, as changed by others.
func written(g *podGroup, how ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	o := g.object()
	o = g.reported(o)
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: manager, FieldsV1: fields(`{"f:spec":{"f:minMember":{}}}`)}})
	for _, f := range how {
		f(o)
	}
	return o
}

func fields(text string) *metav1.FieldsV1 {
	var f metav1.FieldsV1
	if err := f.UnmarshalJSON([]byte(text)); err != nil {
		panic(err)
	}
	return &f
}

func by(manager, text string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		o.SetManagedFields(append(o.GetManagedFields(), metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: fields(text)}))
	}
}

func TestDecide(t *testing.T) {
	with := func(g *podGroup, how func(*podGroup)) *podGroup { how(g); return g }
	unlabeled := func(o *unstructured.Unstructured) { o.SetLabels(nil) }
	for _, tt := range []struct {
		name   string
		gang   *podGroup
		object *unstructured.Unstructured
		want   action
	}{
		{"no object yet", labeled(3), nil, create},
		{"Koordinator's, or an object of the user's in the other group", with(labeled(3), func(g *podGroup) { g.ByLabels = false }), nil, nothing},
		{"finished, or its members contradict each other", with(labeled(3), func(g *podGroup) { g.Certain = false }), nil, nothing},
		{"for another scheduler", with(labeled(3), func(g *podGroup) { g.Foreign = true }), nil, nothing},
		{"the object matches", labeled(3), written(labeled(3)), nothing},
		{"the object of another scheduler's gang", with(labeled(3), func(g *podGroup) { g.Foreign = true }), written(labeled(2)), nothing},
		{"pods have another min-available", labeled(4), written(labeled(3)), updateSpec},
		{"pods wait longer", with(labeled(3), func(g *podGroup) { g.Timeout = 90 * time.Second }), written(labeled(3)), updateSpec},
		{"pods have another owner", with(labeled(3), func(g *podGroup) { g.Owner = job("a") }), written(labeled(3)), updateSpec},
		{"pods contradict each other now", with(labeled(4), func(g *podGroup) { g.Certain = false }), written(labeled(3)), nothing},
		{"it runs", with(labeled(3), func(g *podGroup) { g.State = gang.State{Phase: gang.Running, Running: 3} }), written(labeled(3)), updateStatus},
		{"no pod is left", nil, written(labeled(3)), remove},
		{"its user made one in the other group", with(labeled(3), func(g *podGroup) { g.ByLabels = false }), written(labeled(3)), remove},
		{"it is terminating", nil, written(labeled(3), func(o *unstructured.Unstructured) { o.SetDeletionTimestamp(new(metav1.Now())) }), nothing},
		{"a user's, of another size", labeled(4), written(labeled(3), unlabeled), nothing},
		{"a user's, no pod is left", nil, written(labeled(3), unlabeled), nothing},
		{"a user edited the spec", labeled(4), written(labeled(3), by("kubectl-edit", `{"f:spec":{"f:minMember":{}}}`)), nothing},
		{"a user edited the spec, no pod is left", nil, written(labeled(3), by("kubectl-edit", `{"f:spec":{"f:minMember":{}}}`)), nothing},
		{"a user annotated it", nil, written(labeled(3), by("kubectl-annotate", `{"f:metadata":{"f:annotations":{"f:spec":{}}}}`)), remove},
		{"a controller writes its status", nil, written(labeled(3), by("controller", `{"f:status":{"f:phase":{}}}`)), remove},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := decide(tt.gang, tt.object); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
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
	r := &rig{T: t, api: client, gangs: map[types.NamespacedName]*podGroup{}, at: time.Unix(1e9, 0)}
	r.reconciler = &reconciler{
		client: client.Resource(resource(wellknown.PodGroupAPIXK8s)), log: slog.New(slog.DiscardHandler), history: map[types.NamespacedName]*history{},
	}
	return r
}

// objects are those of an informer that is never late.
func (r *rig) objects() (all []any) {
	objects, err := r.api.Resource(resource(wellknown.PodGroupAPIXK8s)).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	for i := range objects.Items {
		all = append(all, &objects.Items[i])
	}
	return all
}

// after runs a round some time later, and returns what is there.
func (r *rig) after(d time.Duration) map[string]any {
	r.Helper()
	r.at = r.at.Add(d)
	r.api.ClearActions()
	r.round(r.Context(), r.at, maps.Clone(r.gangs), r.objects())
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
	g := labeled(3)
	g.Owner, g.Timeout = job("a"), 1500*time.Millisecond
	r.gangs[key("x")] = g
	want := map[string]any{
		"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
		"metadata": map[string]any{
			"name": "x", "namespace": "default", "labels": map[string]any{managedBy: manager},
			"ownerReferences": []any{map[string]any{"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "a"}},
		},
		"spec": map[string]any{"minMember": int64(3), "scheduleTimeoutSeconds": int64(2)},
	}
	if diff := cmp.Diff(want, r.after(publishEvery)); diff != "" {
		t.Fatalf("made (-want +got):\n%s", diff)
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
	g.MinMember, g.Owner, g.Timeout = 2, nil, 0
	got := r.after(publishEvery)
	if diff := cmp.Diff(map[string]any{"minMember": int64(2)}, got["spec"]); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if owners := (&unstructured.Unstructured{Object: got}).GetOwnerReferences(); len(owners) > 0 {
		t.Errorf("owners %v", owners)
	}
	delete(r.gangs, key("x"))
	if r.after(publishEvery) == nil || r.after(deleteAfter/2) == nil {
		t.Error("it goes while pods may be on their way")
	}
	if got := r.after(deleteAfter); got != nil {
		t.Errorf("it stays: %v", got)
	}
	if r.after(publishEvery); len(r.history) != 0 {
		t.Errorf("it remembers %v", r.history)
	}
}

// A job that replaces its pods keeps its object: time without pods does not
// add up.
func TestReplacedPodsKeepTheObject(t *testing.T) {
	r := newRig(t)
	r.gangs[key("x")] = labeled(3)
	r.after(publishEvery)
	for range 2 {
		delete(r.gangs, key("x"))
		r.after(publishEvery)
		if r.after(deleteAfter-time.Second) == nil {
			t.Fatal("it is gone")
		}
		r.gangs[key("x")] = labeled(3)
		r.after(publishEvery)
	}
	delete(r.gangs, key("x"))
	r.after(publishEvery)
	if r.after(deleteAfter) != nil {
		t.Error("it stays")
	}
}

func TestDeletedObjectIsCreatedAgain(t *testing.T) {
	r := newRig(t)
	r.gangs[key("x")] = labeled(3)
	r.after(publishEvery)
	if err := r.api.Tracker().Delete(resource(wellknown.PodGroupAPIXK8s), "default", "x"); err != nil {
		t.Fatal(err)
	}
	if r.after(publishEvery) != nil {
		t.Error("it is made again at once")
	}
	if r.after(createEvery) == nil {
		t.Error("it is not made again")
	}
}

func TestRoundsAreBounded(t *testing.T) {
	r := newRig(t)
	for i := range 3 * maxWrites / 2 {
		g := labeled(3)
		g.Key = key("x" + string(rune('a'+i%26)) + string(rune('a'+i/26)))
		r.gangs[g.Key] = g
	}
	r.after(publishEvery)
	if n := r.writes(); n != maxWrites {
		t.Errorf("%d writes in a round, want %d", n, maxWrites)
	}
}

// What another CRD's schema drops is not written again and again.
func TestStatusDroppedBySchema(t *testing.T) {
	r := newRig(t)
	r.gangs[key("x")] = labeled(3)
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

func TestFailures(t *testing.T) {
	group := schema.GroupResource{Group: wellknown.PodGroupAPIXK8s, Resource: wellknown.PodGroups}
	terminating := apierrors.NewForbidden(group, "x", errors.New("being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for _, tt := range []struct {
		name string
		err  error
		// next is when it is tried again, logged how often it is logged in three tries.
		next   time.Duration
		logged int
	}{
		{"another client was faster", apierrors.NewAlreadyExists(group, "x"), createEvery, 0},
		{"the namespace is terminating", terminating, retryAfter, 0},
		{"no such kind, or namespace", apierrors.NewNotFound(group, "x"), retryAfter, 0},
		{"forbidden", apierrors.NewForbidden(group, "x", errors.New("no")), forbiddenFor, 1},
		{"internal error", apierrors.NewInternalError(errors.New("x")), retryAfter, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			logged := &counter{}
			r.log = slog.New(logged)
			r.gangs[key("x")] = labeled(3)
			r.api.PrependReactor("create", "podgroups", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, tt.err
			})
			if r.after(publishEvery); r.writes() != 1 {
				t.Fatal("it does not try")
			}
			if r.after(tt.next - time.Second); r.writes() != 0 {
				t.Error("it tries again at once")
			}
			if r.after(time.Second); r.writes() != 1 {
				t.Errorf("it does not try again after %s", tt.next)
			}
			r.after(tt.next)
			if logged.n != tt.logged {
				t.Errorf("logged %d times, want %d", logged.n, tt.logged)
			}
		})
	}
}

// counter counts what is logged.
type counter struct {
	slog.Handler
	n int
}

func (*counter) Enabled(context.Context, slog.Level) bool { return true }

func (c *counter) Handle(context.Context, slog.Record) error {
	c.n++
	return nil
}
