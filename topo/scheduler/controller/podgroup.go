package controller

import (
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/gang"
)

// The controller keeps the PodGroup objects of gangs that labels describe, so that
// kubectl get podgroups shows every gang: those of scheduling.x-k8s.io that heddle
// made. Such an object never decides about a gang, since it only repeats the pods.
//
//   - An object is managed by heddle if its label app.kubernetes.io/managed-by names
//     heddle-scheduler and no other field manager owns a field of its spec. A user
//     takes it over by editing the spec, or by removing the label.
//   - It is created when the gang's pods are described by labels, one of them is
//     neither finished nor terminating, none contradicts another, and no object of
//     that name exists in either API group.
//   - It follows the pods: another min-available is written into it.
//   - It belongs to the controller that all pods of the gang share, and is garbage
//     collected with the job. In any case it is deleted when the gang has had no
//     pod for some seconds, or an object of its user's.
//   - One that a user deletes while its gang has pods is created again, at most
//     every ten seconds. Neither has an effect on the gang.
const (
	// manager is the value of the label that marks managed objects, and the field
	// manager that writes them.
	manager   = "heddle-scheduler"
	managedBy = "app.kubernetes.io/managed-by"
)

// podGroup is the desired state of an object; its gang has pods.
type podGroup struct {
	Key types.NamespacedName
	// Foreign gangs are for another scheduler and left alone.
	Foreign bool
	// ByLabels gangs are described by labels, and have no object of their user's.
	ByLabels bool
	// Create allows to create the object and to write its spec: MinMember, Timeout
	// and Owner are known.
	Create    bool
	MinMember int
	// Timeout is how long members that have a node wait for the others; 0 if the
	// pods have none.
	Timeout time.Duration
	// Owner is the controller that all pods share; nil if they share none.
	Owner  *metav1.OwnerReference
	Status status
}

// podGroups are the objects that gangs are to have.
func (c *Controller) podGroups() map[types.NamespacedName]*podGroup {
	all := map[types.NamespacedName]*podGroup{}
	for _, s := range c.Cache.Snapshots() {
		all[s.Key] = &podGroup{
			Key: s.Key, Foreign: !c.schedules(s.Pods), MinMember: s.MinMember, Timeout: s.Timeout, Owner: owner(s.Pods),
			ByLabels: !s.HasObject && slices.ContainsFunc(s.Pods, gang.IsLabeled),
			Create:   s.Live && !s.Invalid && s.MinMember > 0,
			Status:   statusOf(gang.StateOf(gang.Members(s.Pods), s.MinMember, c.nodeLost)),
		}
	}
	return all
}

// owner is the controller that all pods have; nil if they have none, or several.
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

// status is that of a PodGroup, as the coscheduling plugin writes it.
type status struct {
	Phase                                 string
	Scheduled, Running, Succeeded, Failed int
}

// statusOf is the status of a PodGroup for the state of its gang.
func statusOf(s gang.State) status {
	out := status{Scheduled: s.Bound + s.Succeeded, Running: s.Running, Succeeded: s.Succeeded, Failed: s.Failed}
	switch {
	case s.Phase == gang.Running:
		out.Phase = "Running"
	case s.Phase == gang.Starting: // It has the nodes that it needs; too few members run yet.
		out.Phase = "Scheduled"
	case s.Phase == gang.Succeeded:
		out.Phase = "Finished"
	case s.Phase == gang.Unknown && s.Failed > 0:
		out.Phase = "Failed"
	case s.Phase == gang.Unknown:
		out.Phase = "Unknown"
	case s.Bound > 0:
		out.Phase = "Scheduling"
	default:
		out.Phase = "Pending"
	}
	return out
}

// readStatus reads the status of an object; what it lacks is zero.
func readStatus(o *unstructured.Unstructured) status {
	count := func(field string) int {
		n, _, _ := unstructured.NestedInt64(o.Object, "status", field)
		return int(n)
	}
	phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
	return status{phase, count("scheduled"), count("running"), count("succeeded"), count("failed")}
}

// managed reports whether heddle created an object and nothing else has written
// its spec.
func managed(o *unstructured.Unstructured) bool {
	if o.GetLabels()[managedBy] != manager {
		return false
	}
	entries, _, _ := unstructured.NestedSlice(o.Object, "metadata", "managedFields")
	for _, entry := range entries {
		fields, _ := entry.(map[string]any)
		_, spec, _ := unstructured.NestedFieldNoCopy(fields, "fieldsV1", "f:spec")
		if writer, _ := fields["manager"].(string); spec && writer != manager {
			return false
		}
	}
	return true
}

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
func decide(g *podGroup, o *unstructured.Unstructured) action {
	switch {
	case g != nil && g.Foreign:
		return nothing
	case o == nil && g != nil && g.ByLabels && g.Create:
		return create
	case o == nil, !managed(o), o.GetDeletionTimestamp() != nil:
		return nothing
	case g == nil, !g.ByLabels:
		return remove
	case g.Create && !g.matchesSpec(o):
		return updateSpec
	case readStatus(o) != g.Status:
		return updateStatus
	}
	return nothing
}

// matchesSpec compares the spec and the owner.
func (g *podGroup) matchesSpec(o *unstructured.Unstructured) bool {
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

// object is a new one.
func (g *podGroup) object() *unstructured.Unstructured {
	spec := map[string]any{"minMember": int64(g.MinMember)}
	if g.Timeout > 0 {
		spec["scheduleTimeoutSeconds"] = seconds(g.Timeout)
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": gang.APIGroupXK8s + "/" + gang.APIVersion, "kind": "PodGroup", "spec": spec,
	}}
	o.SetNamespace(g.Key.Namespace)
	o.SetName(g.Key.Name)
	o.SetLabels(map[string]string{managedBy: manager})
	if g.Owner != nil {
		o.SetOwnerReferences([]metav1.OwnerReference{*g.Owner})
	}
	return o
}

// precondition is the part of a merge patch that makes the API server reject it if
// the object has changed since it was read.
func precondition(o *unstructured.Unstructured) map[string]any {
	return map[string]any{"uid": string(o.GetUID()), "resourceVersion": o.GetResourceVersion()}
}

// specPatch writes the spec and the owner.
func (g *podGroup) specPatch(o *unstructured.Unstructured) map[string]any {
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
func (g *podGroup) statusPatch(o *unstructured.Unstructured) map[string]any {
	s := &g.Status
	return map[string]any{"metadata": precondition(o), "status": map[string]any{
		"phase": s.Phase, "scheduled": s.Scheduled, "running": s.Running, "succeeded": s.Succeeded, "failed": s.Failed,
	}}
}
