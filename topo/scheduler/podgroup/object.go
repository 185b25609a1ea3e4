package podgroup

import (
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// action is what an object needs.
type action int

const (
	nothing action = iota
	create
	updateSpec
	updateStatus
	remove
)

// decide compares a gang, nil without pods, with the object of its name, nil if
// there is none.
func decide(g *Gang, o *unstructured.Unstructured) action {
	switch {
	case g != nil && g.Foreign:
		return nothing
	case o == nil && g != nil && g.ByLabels && g.Create:
		return create
	case o == nil, !Managed(o), o.GetDeletionTimestamp() != nil:
		return nothing
	case g == nil, !g.ByLabels:
		return remove
	case g.Create && !g.matchesSpec(o):
		return updateSpec
	case statusOf(o) != g.Status:
		return updateStatus
	}
	return nothing
}

// matchesSpec compares the spec and the owner.
func (g *Gang) matchesSpec(o *unstructured.Unstructured) bool {
	least, _, _ := unstructured.NestedInt64(o.Object, "spec", "minMember")
	timeout, _, _ := unstructured.NestedInt64(o.Object, "spec", "scheduleTimeoutSeconds")
	owners := o.GetOwnerReferences()
	if len(owners) > 1 || (len(owners) == 1) != (g.Owner != nil) || g.Owner != nil && owners[0].UID != g.Owner.UID {
		return false
	}
	return least == int64(g.MinMember) && timeout == seconds(g.Timeout)
}

// seconds rounds up.
func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// statusOf reads the status of an object; what it lacks is zero.
func statusOf(o *unstructured.Unstructured) Status {
	count := func(field string) int {
		n, _, _ := unstructured.NestedInt64(o.Object, "status", field)
		return int(n)
	}
	phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
	return Status{phase, count("scheduled"), count("running"), count("succeeded"), count("failed")}
}

// object is a new one.
func (g *Gang) object() *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiVersion, "kind": "PodGroup", "spec": map[string]any{"minMember": int64(g.MinMember)},
	}}
	o.SetNamespace(g.Key.Namespace)
	o.SetName(g.Key.Name)
	o.SetLabels(map[string]string{managedBy: Manager})
	if g.Owner != nil {
		o.SetOwnerReferences([]metav1.OwnerReference{*g.Owner})
	}
	if g.Timeout > 0 {
		// The error is of an object without a spec.
		_ = unstructured.SetNestedField(o.Object, seconds(g.Timeout), "spec", "scheduleTimeoutSeconds")
	}
	return o
}

// precondition is the part of a merge patch that makes the API server reject it if
// the object has changed since it was read.
func precondition(o *unstructured.Unstructured) map[string]any {
	return map[string]any{"uid": string(o.GetUID()), "resourceVersion": o.GetResourceVersion()}
}

// specPatch writes the spec and the owner.
func (g *Gang) specPatch(o *unstructured.Unstructured) map[string]any {
	metadata, spec := precondition(o), map[string]any{"minMember": g.MinMember, "scheduleTimeoutSeconds": nil}
	metadata["ownerReferences"] = nil
	if g.Owner != nil {
		metadata["ownerReferences"] = []metav1.OwnerReference{*g.Owner}
	}
	if g.Timeout > 0 {
		spec["scheduleTimeoutSeconds"] = seconds(g.Timeout)
	}
	return map[string]any{"metadata": metadata, "spec": spec}
}

// statusPatch writes the status.
func (g *Gang) statusPatch(o *unstructured.Unstructured) map[string]any {
	s := &g.Status
	return map[string]any{"metadata": precondition(o), "status": map[string]any{
		"phase": s.Phase, "scheduled": s.Scheduled, "running": s.Running, "succeeded": s.Succeeded, "failed": s.Failed,
	}}
}
