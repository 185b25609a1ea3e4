package gangcache

import (
	corev1 "k8s.io/api/core/v1"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// stage is the progress of a member.
type stage int

const (
	// pending members have no node.
	pending stage = iota
	// planned members have a node reserved by a plan.
	planned
	// reserved members hold it and wait for the others in Permit.
	reserved
	// released members are being bound.
	released
	// bound members have the node in the API.
	bound
	// done members have finished.
	done
)

// member is a pod of a gang.
type member struct {
	gang *gangInfo
	pod  *corev1.Pod
	spec gang.Spec
	err  error
	// resources are the pod's requests, which never change.
	resources planner.Member
	stage     stage
	// node is set in the stages planned to bound.
	node string
	// unbound reports that binding failed after the gang had its nodes.
	unbound bool
	// notified reports that the pod's condition has the gang's current reason.
	notified bool
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// live reports that the pod is neither finished nor terminating, and has no scheduling gates.
func (m *member) live() bool {
	if m.pod.DeletionTimestamp != nil || finished(m.pod) {
		return false
	}
	return len(m.pod.Spec.SchedulingGates) == 0 || m.pod.Spec.NodeName != ""
}

// onItsWay reports that a node is reserved for the member, which is not being bound yet.
func (m *member) onItsWay() bool { return m.stage == planned || m.stage == reserved }

// schedulable reports that the member waits for the scheduler.
func (m *member) schedulable() bool { return m != nil && m.live() && m.stage < reserved }

// waits reports that the member waits for the scheduler and has no node by a plan.
func (m *member) waits() bool { return m.schedulable() && m.stage == pending }

func (m *member) priority() int32 { return schedulehelpers.PodPriority(m.pod) }
