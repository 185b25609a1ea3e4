package gangcache

import (
	corev1 "k8s.io/api/core/v1"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// stage is how far a member is.
type stage int

const (
	// pending members have no node.
	pending stage = iota
	// planned ones have a node reserved by a plan.
	planned
	// reserved ones hold it and wait for the others in Permit.
	reserved
	// released ones are being bound.
	released
	// bound ones have it in the API.
	bound
	// done ones have finished.
	done
)

// member is a pod of a gang.
type member struct {
	gang *gangInfo
	pod  *corev1.Pod
	spec gang.Spec
	err  error
	// resources is what the pod requests, which never changes.
	resources planner.Member
	stage     stage
	// node is that of a member of stage planned to bound.
	node string
	// unbound reports that it could not be bound when its gang had its nodes, and is not yet.
	unbound bool
	// notified reports that the pod's condition has the gang's current reason.
	notified bool
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// live reports that the pod is neither finished, nor terminating, nor held back by
// scheduling gates.
func (m *member) live() bool {
	if m.pod.DeletionTimestamp != nil || finished(m.pod) {
		return false
	}
	return len(m.pod.Spec.SchedulingGates) == 0 || m.pod.Spec.NodeName != ""
}

// onItsWay reports that a node is reserved for the member, which is not being bound to it.
func (m *member) onItsWay() bool { return m.stage == planned || m.stage == reserved }

// schedulable reports that the member waits for the scheduler.
func (m *member) schedulable() bool { return m != nil && m.live() && m.stage < reserved }

func (m *member) priority() int32 { return schedulehelpers.PodPriority(m.pod) }

// obstacle is why a member may not be on its node any longer: that is nil if it is gone.
func (m *member) obstacle(node *corev1.Node) string {
	if node == nil {
		return "deleted"
	}
	return m.resources.Class.Obstacle(node)
}
