// Package podgroup keeps the PodGroup objects that are made for gangs which
// labels describe, so that kubectl get podgroups shows every gang.
//
// It owns the objects of scheduling.x-k8s.io that it made, their spec and their
// status, and nothing else: an object that somebody else made, or whose spec
// somebody else has written since, it never touches. What such an object says
// never decides about a gang, since it only repeats the pods. It writes in the
// background, a bounded number of objects a round, and never from a scheduling
// cycle. What a gang is, it is told.
//
// # Rules
//
//   - An object is ours if its label app.kubernetes.io/managed-by says so and no
//     other field manager owns anything of its spec. Who edits the spec, or takes
//     the label away, has taken the object over.
//   - It is made when the gang's pods are described by labels, one of them is
//     neither finished nor going, none contradicts another, and no object of
//     that name exists in either API group.
//   - It follows the pods: another min-available is written into it.
//   - It belongs to the controller that all pods of the gang share, so that it
//     goes with the job. Whether they share one or not, it is deleted when the
//     gang has had no pod for some seconds, or an object of its user's.
//   - One that somebody deletes while its gang has pods is made again, at most
//     every ten seconds. The gang notices neither.
package podgroup

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/gang"
)

// Manager is the value of the label that marks our objects, and the field
// manager that writes them.
const Manager = "heddle-scheduler"

const (
	managedBy  = "app.kubernetes.io/managed-by"
	apiVersion = gang.APIGroupXK8s + "/" + gang.APIVersion
)

// Gang is one that has pods, as far as its object is concerned.
type Gang struct {
	Key types.NamespacedName
	// Theirs tells that its pods are for another scheduler: nothing is done.
	Theirs bool
	// Labels tells that labels describe it, and that no object of its user's
	// does: it may have one of ours.
	Labels bool
	// Make tells that its object is to be made if there is none, and that
	// MinMember, Timeout and Owner are what is to stand in it.
	Make      bool
	MinMember int
	// Timeout is how long members that have a node wait for the others; 0 if the
	// pods say nothing.
	Timeout time.Duration
	// Owner is the controller that all pods share; nil if they share none.
	Owner  *metav1.OwnerReference
	Status Status
}

// Status is that of a PodGroup, as the coscheduling plugin's has it.
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
	// Unknown gangs need somebody.
	Unknown = "Unknown"
)

// StatusOf puts the state of a gang into a PodGroup's words.
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

// Ours tells whether we made an object, and nobody else has written its spec.
func Ours(o *unstructured.Unstructured) bool {
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
