// Package podgroup keeps the PodGroup objects of gangs that labels describe, so
// that kubectl get podgroups shows every gang.
//
// It owns the objects of scheduling.x-k8s.io that heddle made, their spec and their
// status, and nothing else: it never writes an object of another creator, or one
// with a spec that another field manager has written. Such an object never decides
// about a gang, since it only repeats the pods. It writes in the background, a
// bounded number of objects a round, and never from a scheduling cycle.
//
// # Rules
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
package podgroup

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/gang"
)

// Manager is the value of the label that marks managed objects, and the field
// manager that writes them.
const Manager = "heddle-scheduler"

const (
	managedBy  = "app.kubernetes.io/managed-by"
	apiVersion = gang.APIGroupXK8s + "/" + gang.APIVersion
)

// Gang is the desired state of an object; the gang has pods.
type Gang struct {
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
	Status Status
}

// Status is that of a PodGroup, as the coscheduling plugin writes it.
type Status struct {
	Phase                                 string
	Scheduled, Running, Succeeded, Failed int
}

// Phases of a PodGroup.
const (
	// Pending gangs have no node, Scheduling ones too few.
	Pending    = "Pending"
	Scheduling = "Scheduling"
	// Scheduled gangs have the nodes that they need; too few members run yet.
	Scheduled = "Scheduled"
	Running   = "Running"
	Finished  = "Finished"
	Failed    = "Failed"
	// Unknown gangs need attention.
	Unknown = "Unknown"
)

// StatusOf is the status of a PodGroup for the state of its gang.
func StatusOf(s gang.State) Status {
	out := Status{Scheduled: s.Bound + s.Succeeded, Running: s.Running, Succeeded: s.Succeeded, Failed: s.Failed}
	switch s.Phase {
	case gang.Running:
		out.Phase = Running
	case gang.Starting:
		out.Phase = Scheduled
	case gang.Succeeded:
		out.Phase = Finished
	case gang.Unknown:
		out.Phase = Unknown
		if s.Failed > 0 {
			out.Phase = Failed
		}
	default:
		out.Phase = Pending
		if s.Bound > 0 {
			out.Phase = Scheduling
		}
	}
	return out
}

// Managed reports whether heddle created an object and nothing else has written
// its spec.
func Managed(o *unstructured.Unstructured) bool {
	if o.GetLabels()[managedBy] != Manager {
		return false
	}
	entries, _, _ := unstructured.NestedSlice(o.Object, "metadata", "managedFields")
	for _, entry := range entries {
		fields, _ := entry.(map[string]any)
		if manager, _ := fields["manager"].(string); manager == Manager {
			continue
		}
		if _, found, _ := unstructured.NestedFieldNoCopy(fields, "fieldsV1", "f:spec"); found {
			return false
		}
	}
	return true
}
