package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

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
	retryAfter = 30 * time.Second
)

// foreign reports whether a gang is for another scheduler.
func (c *Controller) foreign(g *gangcache.Gang) bool {
	return !slices.ContainsFunc(g.Pods, func(p *corev1.Pod) bool { return p.Spec.SchedulerName == c.Handle.ProfileName() })
}

func (c *Controller) stateOf(g *gangcache.Gang) gang.State {
	return gang.StateOf(gang.Members(g.Pods), g.MinMember, c.nodeLost)
}

// managed reports whether heddle created an object.
func managed(o *unstructured.Unstructured) bool { return o.GetLabels()[managedBy] == manager }

// objectOf returns the object of a gang that labels describe. Its owner is the controller that all pods share.
func objectOf(g *gangcache.Gang) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": wellknown.PodGroupAPIXK8s + "/" + wellknown.PodGroupVersion, "kind": "PodGroup", "spec": specOf(g),
	}}
	o.SetNamespace(g.Key.Namespace)
	o.SetName(g.Key.Name)
	o.SetLabels(map[string]string{managedBy: manager})
	owner := metav1.GetControllerOf(g.Pods[0])
	others := func(p *corev1.Pod) bool { return !metav1.IsControlledBy(p, &metav1.ObjectMeta{UID: owner.UID}) }
	if owner != nil && !slices.ContainsFunc(g.Pods, others) {
		owner.Controller, owner.BlockOwnerDeletion = nil, nil
		o.SetOwnerReferences([]metav1.OwnerReference{*owner})
	}
	return o
}

func specOf(g *gangcache.Gang) map[string]any {
	spec := map[string]any{"minMember": int64(g.MinMember)}
	if g.Timeout > 0 {
		spec["scheduleTimeoutSeconds"] = int64(math.Ceil(g.Timeout.Seconds()))
	}
	return spec
}

// statusOf returns the status of a PodGroup, as the coscheduling plugin writes it.
func statusOf(s *gang.State) map[string]any {
	phase := "Pending"
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

// reconcile writes PodGroup objects of scheduling.x-k8s.io, so that kubectl get podgroups shows every gang. It creates
// one for a gang that labels describe and that has no object, follows the pods, and deletes it when no pod is left.
// Such an object never decides about a gang. Of objects of users it writes the status. It stops at the first error.
func (c *Controller) reconcile(ctx context.Context, objects []any) error {
	gangs, existing := map[types.NamespacedName]*gangcache.Gang{}, map[types.NamespacedName]bool{}
	for _, g := range c.Cache.Gangs() {
		gangs[g.Key] = &g
	}
	for _, object := range objects {
		o, ok := object.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		key := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
		existing[key] = true
		if err := ignored(c.update(ctx, gangs[key], o)); err != nil {
			return fmt.Errorf("update %s: %w", key, err)
		}
	}
	for key, g := range gangs {
		if !g.ByLabels || !g.Certain || existing[key] || c.foreign(g) {
			continue
		}
		client := c.client.Resource(resource(wellknown.PodGroupAPIXK8s)).Namespace(key.Namespace)
		_, err := client.Create(ctx, objectOf(g), metav1.CreateOptions{FieldManager: manager})
		if err = ignored(err); err != nil {
			return fmt.Errorf("create %s: %w", key, err)
		}
	}
	return nil
}

// update brings an object up to date; g is nil without pods.
func (c *Controller) update(ctx context.Context, g *gangcache.Gang, o *unstructured.Unstructured) error {
	client := c.client.Resource(resource(wellknown.PodGroupAPIXK8s)).Namespace(o.GetNamespace())
	switch {
	case g != nil && c.foreign(g) || o.GetDeletionTimestamp() != nil:
		return nil
	case managed(o) && (g == nil || !g.ByLabels):
		same := metav1.NewUIDPreconditions(string(o.GetUID()))
		return client.Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: same})
	case g == nil:
		return nil
	}
	patch := func(field string, value map[string]any, subresources ...string) error {
		if has(o, field, value) {
			return nil
		}
		text, err := json.Marshal(map[string]any{field: value})
		if err == nil {
			options := metav1.PatchOptions{FieldManager: manager}
			_, err = client.Patch(ctx, o.GetName(), types.MergePatchType, text, options, subresources...)
		}
		return err
	}
	if managed(o) && g.Certain {
		if err := patch("spec", specOf(g)); err != nil {
			return err
		}
	}
	state := c.stateOf(g)
	return patch("status", statusOf(&state), "status")
}

// has reports whether a field of an object has these values. The schema of a CRD may drop parts of the status.
func has(o *unstructured.Unstructured, field string, want map[string]any) bool {
	got, _, _ := unstructured.NestedMap(o.Object, field)
	for key, value := range want {
		if is, ok := got[key]; is != value && (ok || field == "spec" || key == "phase") {
			return false
		}
	}
	return true
}

// ignored returns nil for an error that the next round sees the reason of.
func ignored(err error) error {
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}
