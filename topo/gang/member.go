package gang

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/placement"
)

// Member is one pod of a gang, reduced to what [StateOf] needs, for watchers of many pods. It can
// be compared with ==.
type Member struct {
	// API makes it a member of Gang, which is "namespace/name".
	API  API
	Gang string
	Name string
	// Node is spec.nodeName.
	Node string
	// GPUs is the number of requested GPUs.
	GPUs int32
	// MinMember is the pod's, 0 without any.
	MinMember int32

	// since is when its stage or its problem began, rejected since when it is unschedulable. Both
	// are zero if unknown.
	since, rejected time.Time
	stage           stage
	problem         string
	// rejection explains why it has no node, in the scheduler's words.
	rejection string
	rank      placement.Rank
	// created is in seconds since 1970.
	created int64
}

// stage is the progress of a pod.
type stage uint8

const (
	waiting stage = iota // It has no node.
	bound
	running
	succeeded
	failed
)

// MemberOf reads a pod that requests a number of GPUs; false if it is in no gang. The scheduler
// reports invalid keys.
func MemberOf(pod *corev1.Pod, gpus int32) (*Member, bool) {
	api, name, size := identify(pod, gpus)
	if name == "" {
		return nil, false
	}
	m := memberOf(pod)
	m.API, m.Gang, m.GPUs = api, pod.Namespace+"/"+name, gpus
	m.MinMember = int32(size) //nolint:gosec // At most MaxMembers.
	return m, true
}

// Key returns the gang with its API, since gangs of two APIs may have one name.
func (m *Member) Key() string { return m.Gang + "/" + string(m.API) }

// Members converts the pods of one gang.
func Members(pods []*corev1.Pod) []*Member {
	members := make([]*Member, len(pods))
	for i, pod := range pods {
		members[i] = memberOf(pod)
	}
	return members
}

// memberOf sets the fields that do not depend on the gang.
func memberOf(pod *corev1.Pod) *Member {
	m := &Member{
		Name: pod.Name, Node: pod.Spec.NodeName, problem: problemOf(pod), rank: placement.RankOf(pod),
		created: pod.CreationTimestamp.Unix(),
	}
	switch phase := pod.Status.Phase; {
	case phase == corev1.PodSucceeded:
		m.stage, m.problem = succeeded, ""
	case phase == corev1.PodFailed:
		m.stage, m.problem = failed, hasFailed
	case pod.Spec.NodeName == "":
		m.rejection, m.rejected = rejectionOf(pod)
	case phase == corev1.PodRunning:
		m.stage = running
	default:
		m.stage = bound
	}
	m.since = m.sinceOf(pod)
	return m
}

// Ended reports whether the pod succeeded or failed.
func (m *Member) Ended() bool { return m.stage == succeeded || m.stage == failed }

// end returns when the pod ended, in seconds since 1970: the far future if it has not, and its
// creation if the end is unknown or the pod is being deleted.
func (m *Member) end() int64 {
	switch {
	case m.problem == terminating:
		return m.created
	case !m.Ended():
		return math.MaxInt64
	}
	return max(m.created, m.since.Unix())
}

// OrderMembers sorts by rank, as [placement.OrderPods] does.
func OrderMembers(members []*Member) {
	slices.SortFunc(members, func(a, b *Member) int {
		return cmp.Or(a.rank.Compare(b.rank), strings.Compare(a.Name, b.Name))
	})
}

// Problems of pods. Others are the reasons of waiting containers.
const (
	hasFailed   = "failed"
	terminating = "terminating"
	lostNode    = "on a lost node"
)

// problemOf returns the problem of a pod that has not ended, by its status alone.
func problemOf(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return terminating
	}
	stuck := []string{
		"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "CrashLoopBackOff", "CreateContainerConfigError",
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && slices.Contains(stuck, w.Reason) {
			return "in " + w.Reason
		}
	}
	return ""
}

// rejectionOf returns why and since when a pod has no node, by the condition PodScheduled. A pod
// with scheduling gates was not rejected.
func rejectionOf(pod *corev1.Pod) (text string, at time.Time) {
	c := condition(pod, corev1.PodScheduled)
	if c.Status != corev1.ConditionFalse {
		return "", at
	}
	text = c.Message
	// kube-scheduler writes the number of nodes before the reason, and the result of preemption
	// after it.
	if count, rest, ok := strings.Cut(text, " nodes are available: "); ok && strings.HasPrefix(count, "0/") {
		text = rest
	}
	for _, tail := range []string{" no new claims to deallocate", " preemption: "} {
		text, _, _ = strings.Cut(text, tail)
	}
	const most = 400 // Bytes of a scheduler's message.
	text = wellknown.ClipTo(strings.TrimRight(text, " .,"), most)
	if c.Reason == corev1.PodReasonUnschedulable {
		at = c.LastTransitionTime.Time
	}
	return text, at
}

// sinceOf returns when a pod's stage or problem began, by its status.
func (m *Member) sinceOf(pod *corev1.Pod) time.Time {
	kind := corev1.PodReady
	starts, ends := containerTimes(pod)
	switch {
	case m.Ended():
		if last := nth(ends, len(ends)); !last.IsZero() {
			return last
		}
	case pod.DeletionTimestamp != nil:
		// The timestamp is when the grace period ends.
		at := pod.DeletionTimestamp.Time
		if grace := pod.DeletionGracePeriodSeconds; grace != nil {
			at = at.Add(-time.Duration(min(max(*grace, 0), math.MaxInt32)) * time.Second)
		}
		return at
	case m.problem != "": // It has not been ready since then.
	case m.stage == waiting:
		return pod.CreationTimestamp.Time
	case m.stage == bound:
		kind = corev1.PodScheduled
	default:
		first := nth(starts, 1)
		if first.IsZero() && pod.Status.StartTime != nil {
			return pod.Status.StartTime.Time
		}
		return first
	}
	return condition(pod, kind).LastTransitionTime.Time
}

// containerTimes returns the start times of running containers and the end times of others.
func containerTimes(pod *corev1.Pod) (starts, ends []time.Time) {
	for i := range pod.Status.ContainerStatuses {
		state := &pod.Status.ContainerStatuses[i].State
		if state.Running != nil {
			starts = append(starts, state.Running.StartedAt.Time)
		}
		if state.Terminated != nil {
			ends = append(ends, state.Terminated.FinishedAt.Time)
		}
	}
	return starts, ends
}

// condition returns a condition of a pod; the zero value if it is missing.
func condition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}
