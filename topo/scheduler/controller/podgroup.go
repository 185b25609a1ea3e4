package controller

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
)

const (
	// manager is the value of the label that marks heddle's objects, and the field
	// manager that writes them.
	manager   = "heddle-scheduler"
	managedBy = "app.kubernetes.io/managed-by"
	// retryAfter is the time without writes after one has failed.
	retryAfter     = 30 * time.Second
	requestTimeout = 10 * time.Second
)

// podGroup is a gang that has pods.
type podGroup struct {
	gangcache.Gang
	// Foreign gangs are for another scheduler and left alone.
	Foreign bool
	// Owner is the controller that all pods share; nil if they share none.
	Owner *metav1.OwnerReference
	State gang.State
}

// podGroups returns the gangs that have pods.
func (c *Controller) podGroups() map[types.NamespacedName]*podGroup {
	all := map[types.NamespacedName]*podGroup{}
	for _, s := range c.Cache.Gangs() {
		own := func(p *corev1.Pod) bool { return p.Spec.SchedulerName == c.Handle.ProfileName() }
		all[s.Key] = &podGroup{
			Gang: s, Foreign: !slices.ContainsFunc(s.Pods, own),
			Owner: owner(s.Pods), State: gang.StateOf(gang.Members(s.Pods), s.MinMember, c.nodeLost),
		}
	}
	return all
}

// owner returns the common controller of all pods, or nil.
func owner(pods []*corev1.Pod) (owner *metav1.OwnerReference) {
	for _, pod := range pods {
		o := metav1.GetControllerOfNoCopy(pod)
		if o == nil || owner != nil && o.UID != owner.UID {
			return nil
		}
		owner = o
	}
	return &metav1.OwnerReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}
}

// managed reports whether heddle created an object.
func managed(o *unstructured.Unstructured) bool { return o.GetLabels()[managedBy] == manager }

// object returns the object of a gang that labels describe.
func (g *podGroup) object() *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": wellknown.PodGroupAPIXK8s + "/" + wellknown.PodGroupVersion, "kind": "PodGroup", "spec": g.spec(),
	}}
	o.SetNamespace(g.Key.Namespace)
	o.SetName(g.Key.Name)
	o.SetLabels(map[string]string{managedBy: manager})
	if g.Owner != nil {
		o.SetOwnerReferences([]metav1.OwnerReference{*g.Owner})
	}
	return o
}

func (g *podGroup) spec() map[string]any {
	spec := map[string]any{"minMember": int64(g.MinMember)}
	if g.Timeout > 0 {
		spec["scheduleTimeoutSeconds"] = int64(math.Ceil(g.Timeout.Seconds()))
	}
	return spec
}

// status returns the status of a PodGroup, as the coscheduling plugin writes it.
func (g *podGroup) status() map[string]any {
	s, phase := &g.State, "Pending"
	switch {
	case s.Phase == gang.Running:
		phase = "Running"
	case s.Phase == gang.Starting: // It has the nodes that it needs; too few members run yet.
		phase = "Scheduled"
	case s.Phase == gang.Succeeded:
		phase = "Finished"
	case s.Phase == gang.Unknown && s.Failed > 0:
		phase = "Failed"
	case s.Phase == gang.Unknown:
		phase = "Unknown"
	case s.Bound > 0:
		phase = "Scheduling"
	}
	return map[string]any{
		"phase": phase, "scheduled": int64(s.Bound + s.Succeeded), "running": int64(s.Running),
		"succeeded": int64(s.Succeeded), "failed": int64(s.Failed),
	}
}

// reconciler writes PodGroup objects of scheduling.x-k8s.io, so that kubectl get
// podgroups shows every gang. It creates one for a gang that labels describe and that
// has no object, follows the pods, and deletes it when no pod is left. Such an object
// never decides about a gang. Of objects of users it writes the status. It is for one
// goroutine.
type reconciler struct {
	client dynamic.NamespaceableResourceInterface
	log    *slog.Logger
	// reported has the last status of each object: a schema may drop some of it.
	reported map[types.UID]map[string]any
	// until ends the time without writes, failure was logged last.
	until   time.Time
	failure string
}

// round reconciles each object. gangs are the gangs with pods, objects the PodGroups in the
// cluster.
func (r *reconciler) round(
	ctx context.Context, now time.Time, gangs map[types.NamespacedName]*podGroup, objects []*unstructured.Unstructured,
) {
	existing, reported := map[types.NamespacedName]bool{}, r.reported
	r.reported = map[types.UID]map[string]any{}
	for _, o := range objects {
		key := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
		existing[key] = true
		if last, ok := reported[o.GetUID()]; ok {
			r.reported[o.GetUID()] = last
		}
		if now.After(r.until) {
			r.failed(ctx, now, r.keep(ctx, gangs[key], o))
		}
	}
	for key, g := range gangs {
		if g.ByLabels && g.Certain && !g.Foreign && !existing[key] && now.After(r.until) {
			r.failed(ctx, now, r.create(ctx, g))
		}
	}
}

func (r *reconciler) create(ctx context.Context, g *podGroup) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := r.client.Namespace(g.Key.Namespace).Create(ctx, g.object(), metav1.CreateOptions{FieldManager: manager})
	return err
}

// keep brings an object up to date; g is nil without pods.
func (r *reconciler) keep(ctx context.Context, g *podGroup, o *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	client := r.client.Namespace(o.GetNamespace())
	switch {
	case g != nil && g.Foreign || o.GetDeletionTimestamp() != nil:
		return nil
	case managed(o) && (g == nil || !g.ByLabels):
		same := metav1.NewUIDPreconditions(string(o.GetUID()))
		return client.Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: same})
	case g == nil:
		return nil
	}
	patch := func(field string, value map[string]any, subresources ...string) error {
		text, err := json.Marshal(map[string]any{field: value})
		if err == nil {
			options := metav1.PatchOptions{FieldManager: manager}
			_, err = client.Patch(ctx, o.GetName(), types.MergePatchType, text, options, subresources...)
		}
		return err
	}
	if spec := g.spec(); managed(o) && g.Certain && !has(o, "spec", spec) {
		return patch("spec", spec)
	}
	status := g.status()
	if has(o, "status", status) || maps.Equal(r.reported[o.GetUID()], status) {
		return nil
	}
	r.reported[o.GetUID()] = status
	return patch("status", status, "status")
}

// has reports whether a field of an object has these values.
func has(o *unstructured.Unstructured, field string, want map[string]any) bool {
	got, _, _ := unstructured.NestedMap(o.Object, field)
	for key, value := range want {
		if got[key] != value {
			return false
		}
	}
	return true
}

// failed stops writing for a while, unless the next round sees what made the write
// fail.
func (r *reconciler) failed(ctx context.Context, now time.Time, err error) {
	if err == nil || ctx.Err() != nil || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) ||
		apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return
	}
	r.until = now.Add(retryAfter)
	if text := string(apierrors.ReasonForError(err)); text != r.failure {
		r.failure = text
		r.log.WarnContext(ctx, "cannot write podgroups", "err", err)
	}
}
