package podgroup

import (
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// act is what is to be done about an object.
type act int

const (
	nothing act = iota
	create
	// describe writes the spec and the owner, report the status.
	describe
	report
	remove
)

// decide compares a gang, nil without any pod, with the object of its name, nil
// without any.
func decide(g *Gang, o *unstructured.Unstructured) act {
	switch {
	case g != nil && g.Theirs:
		return nothing
	case o == nil && g != nil && g.Labels && g.Make:
		return create
	case o == nil, !Ours(o), o.GetDeletionTimestamp() != nil:
		return nothing
	case g == nil, !g.Labels:
		return remove
	case g.Make && !describes(o, g):
		return describe
	case statusOf(o) != g.Status:
		return report
	}
	return nothing
}

// describes tells whether an object says what the gang's pods say.
func describes(o *unstructured.Unstructured, g *Gang) bool {
	least, _, _ := unstructured.NestedInt64(o.Object, "spec", "minMember")
	timeout, _, _ := unstructured.NestedInt64(o.Object, "spec", "scheduleTimeoutSeconds")
	owner := metav1.OwnerReference{}
	if owners := o.GetOwnerReferences(); len(owners) > 1 {
		return false
	} else if len(owners) == 1 {
		owner = owners[0]
	}
	want := metav1.OwnerReference{}
	if g.Owner != nil {
		want = *g.Owner
	}
	return least == int64(g.MinMember) && timeout == seconds(g.Timeout) && owner.UID == want.UID
}

// seconds are whole ones; a part of one counts as one.
func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// statusOf reads the status of an object; what it does not say is zero.
func statusOf(o *unstructured.Unstructured) Status {
	count := func(field string) int {
		n, _, _ := unstructured.NestedInt64(o.Object, "status", field)
		return int(n)
	}
	phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
	return Status{phase, count("scheduled"), count("running"), count("succeeded"), count("failed")}
}

// object is a gang's, new.
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
		_ = unstructured.SetNestedField(o.Object, seconds(g.Timeout), "spec", "scheduleTimeoutSeconds") // spec is a map.
	}
	return o
}

// same is the part of a merge patch that holds for the very object that was
// looked at: one that changed since refuses it.
func same(o *unstructured.Unstructured) map[string]any {
	return map[string]any{"uid": string(o.GetUID()), "resourceVersion": o.GetResourceVersion()}
}

// describing is the patch that makes an object say what the gang's pods say.
func (g *Gang) describing(o *unstructured.Unstructured) map[string]any {
	metadata, spec := same(o), map[string]any{"minMember": g.MinMember, "scheduleTimeoutSeconds": nil}
	metadata["ownerReferences"] = nil
	if g.Owner != nil {
		metadata["ownerReferences"] = []metav1.OwnerReference{*g.Owner}
	}
	if g.Timeout > 0 {
		spec["scheduleTimeoutSeconds"] = seconds(g.Timeout)
	}
	return map[string]any{"metadata": metadata, "spec": spec}
}

// reporting is the patch of an object's status.
func (g *Gang) reporting(o *unstructured.Unstructured) map[string]any {
	s := &g.Status
	return map[string]any{"metadata": same(o), "status": map[string]any{
		"phase": s.Phase, "scheduled": s.Scheduled, "running": s.Running, "succeeded": s.Succeeded, "failed": s.Failed,
	}}
}
