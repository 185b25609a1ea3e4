package controller

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
)

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
		if diff := cmp.Diff(tt.want.fields(), statusOf(&tt.state)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.state.Phase, diff)
		}
	}
}

// rig is a controller with an API server in memory.
type rig struct {
	*testing.T
	*Controller
	api *fake.FakeDynamicClient
}

func newRig(t *testing.T, pods ...*corev1.Pod) *rig {
	t.Helper()
	r := &rig{T: t, Controller: newController(t), api: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{resource(wellknown.PodGroupAPIXK8s): "PodGroupList"})}
	r.client = r.api
	for _, pod := range pods {
		r.Cache.UpdatePod(pod)
	}
	return r
}

// round reconciles, and returns the object x.
func (r *rig) round() map[string]any {
	r.Helper()
	all, err := r.api.Resource(resource(wellknown.PodGroupAPIXK8s)).List(r.Context(), metav1.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	var objects []any
	for i := range all.Items {
		objects = append(objects, &all.Items[i])
	}
	r.api.ClearActions()
	if err := r.reconcile(r.Context(), objects); err != nil {
		r.Fatal(err)
	}
	o, err := r.api.Resource(resource(wellknown.PodGroupAPIXK8s)).Namespace("default").Get(r.Context(), "x", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		r.Fatal(err)
	}
	return o.Object
}

func TestObjectLifecycle(t *testing.T) {
	a, b := ownPod("a", gangOf("2"), "job"), ownPod("b", gangOf("2"), "job")
	a.Annotations = map[string]string{wellknown.KoordinatorWaitingTime: "1500ms"}
	r := newRig(t, a, b)
	want := map[string]any{
		"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
		"metadata": map[string]any{
			"name": "x", "namespace": "default", "labels": map[string]any{managedBy: manager},
			"ownerReferences": []any{map[string]any{"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "job"}},
		},
		"spec": map[string]any{"minMember": int64(2), "scheduleTimeoutSeconds": int64(2)},
	}
	if diff := cmp.Diff(want, r.round()); diff != "" {
		t.Fatalf("created (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(status{Phase: "Pending"}.fields(), r.round()["status"]); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	r.round()
	for _, action := range r.api.Actions() {
		if verb := action.GetVerb(); verb != "list" && verb != "get" {
			t.Errorf("nothing changed, and it writes: %v", action)
		}
	}
	bound := b.DeepCopy()
	bound.Spec.NodeName = "gone"
	r.Cache.UpdatePod(bound)
	if diff := cmp.Diff(status{Phase: "Unknown", Scheduled: 1}.fields(), r.round()["status"]); diff != "" {
		t.Errorf("status with a pod on a lost node (-want +got):\n%s", diff)
	}
	for _, pod := range []*corev1.Pod{a, bound} {
		pod = pod.DeepCopy()
		pod.Labels = gangOf("1")
		r.Cache.UpdatePod(pod)
	}
	if spec, _ := r.round()["spec"].(map[string]any); spec["minMember"] != int64(1) {
		t.Errorf("spec %v", spec)
	}
	r.Cache.DeletePod(a)
	r.Cache.DeletePod(b)
	if got := r.round(); got != nil {
		t.Errorf("it stays: %v", got)
	}
}

// Some gangs get no object; one whose pods share no controller gets one without an owner.
func TestObjectsOfGangs(t *testing.T) {
	koordinator := ownPod("a", nil, "")
	koordinator.Annotations = map[string]string{wellknown.KoordinatorName: "x", wellknown.KoordinatorMinAvailable: "2"}
	done := ownPod("a", gangOf("2"), "")
	done.Status.Phase = corev1.PodSucceeded
	elsewhere := podOf("a", gangOf("2"))
	elsewhere.Spec.SchedulerName = "volcano"
	for _, tt := range []struct {
		name   string
		pods   []*corev1.Pod
		object *unstructured.Unstructured
		want   bool
	}{
		{"two controllers", []*corev1.Pod{ownPod("a", gangOf("2"), "job"), ownPod("b", gangOf("2"), "other")}, nil, true},
		{"a pod without one", []*corev1.Pod{ownPod("a", gangOf("2"), ""), ownPod("b", gangOf("2"), "job")}, nil, true},
		{"by Koordinator's annotations", []*corev1.Pod{koordinator}, nil, false},
		{"contradictory", []*corev1.Pod{ownPod("a", gangOf("2"), ""), ownPod("b", gangOf("3"), "")}, nil, false},
		{"finished", []*corev1.Pod{done}, nil, false},
		{"for another scheduler", []*corev1.Pod{elsewhere}, nil, false},
		{"an object of its user's", []*corev1.Pod{ownPod("a", gangOf("2"), "")}, object(wellknown.PodGroupAPI, 2, nil), false},
		{
			"a managed object, which is ignored",
			[]*corev1.Pod{ownPod("a", gangOf("2"), "")},
			object(wellknown.PodGroupAPIXK8s, 7, map[string]string{managedBy: manager}), true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, tt.pods...)
			if o := tt.object; o != nil {
				r.podGroup(o.GroupVersionKind().Group, o, managed(o))
			}
			got := unstructured.Unstructured{Object: r.round()}
			if (got.Object != nil) != tt.want || got.Object != nil && len(got.GetOwnerReferences()) > 0 {
				t.Errorf("%v, want an object: %v", got.Object, tt.want)
			}
		})
	}
}

// A user's object gets a status, and nothing else.
func TestObjectOfAUser(t *testing.T) {
	pod := ownPod("a", gangOf("7"), "")
	r, o := newRig(t, pod), object(wellknown.PodGroupAPIXK8s, 7, nil)
	if err := r.api.Tracker().Create(resource(wellknown.PodGroupAPIXK8s), o, "default"); err != nil {
		t.Fatal(err)
	}
	r.podGroup(wellknown.PodGroupAPIXK8s, o, false)
	got := r.round()
	if diff := cmp.Diff(map[string]any{"minMember": int64(7)}, got["spec"]); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(status{Phase: "Pending"}.fields(), got["status"]); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	r.Cache.DeletePod(pod)
	if r.round() == nil {
		t.Error("it is deleted")
	}
}

// A status that the schema of a CRD drops is not written again, unless its phase is.
func TestStatusDroppedBySchema(t *testing.T) {
	o := object(wellknown.PodGroupAPIXK8s, 1, nil)
	o.Object["status"] = map[string]any{"phase": "Pending"}
	for phase, want := range map[string]bool{"Pending": true, "Running": false} {
		if got := has(o, "status", status{Phase: phase, Running: 1}.fields()); got != want {
			t.Errorf("%s: %v, want %v", phase, got, want)
		}
	}
}

// The next round sees the reasons of some failed writes; the others stop the writes for a while.
func TestFailedWrites(t *testing.T) {
	group := schema.GroupResource{Group: wellknown.PodGroupAPIXK8s, Resource: wellknown.PodGroups}
	terminating := apierrors.NewForbidden(group, "x", errors.New("being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for _, tt := range []struct {
		err   error
		fails bool
	}{
		{apierrors.NewAlreadyExists(group, "x"), false},
		{terminating, false},
		{apierrors.NewForbidden(group, "x", errors.New("no")), true},
		{apierrors.NewInternalError(errors.New("x")), true},
	} {
		r := newRig(t, ownPod("a", gangOf("2"), ""))
		r.api.PrependReactor("create", "podgroups", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, tt.err
		})
		if err := r.reconcile(t.Context(), nil); (err != nil) != tt.fails {
			t.Errorf("%v: error %v", tt.err, err)
		}
	}
}
