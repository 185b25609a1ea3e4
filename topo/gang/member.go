package gang

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang/rank"
)

// Member is one pod of a gang, as much of it as [StateOf] needs: for
// watchers of many pods that keep little of each. Two members are the same if
// they are equal.
type Member struct {
	// API is what makes it a member, Gang is "namespace/name".
	API  API
	Gang string
	Name string
	// Node is spec.nodeName.
	Node string
	// GPUs is how many it asks for.
	GPUs int32
	// MinMember is the pod's, 0 without any.
	MinMember int32

	// since is when it came to its stage, or when its problem began; rejected is
	// since when no node is good enough for it. Both are zero if unknown.
	since, rejected time.Time
	stage           stage
	problem         string
	// rejection is why it has no node, as the scheduler wrote it.
	rejection string
	rank      rank.Rank
	// created is in seconds since 1970.
	created int64
}

// stage is how far a pod has come.
type stage uint8

const (
	waiting stage = iota // It has no node.
	bound
	running
	succeeded
	failed
)

// MemberOf reads a pod that requests so many GPUs; false if it is in no gang.
// The scheduler reports what else is invalid.
func MemberOf(pod *corev1.Pod, gpus int32) (*Member, bool) {
	id, ok := identify(pod, gpus)
	if !ok {
		return nil, false
	}
	m := memberOf(pod)
	m.API, m.Gang, m.GPUs = id.api, pod.Namespace+"/"+id.name, gpus
	m.MinMember = int32(id.size) //nolint:gosec // At most MaxMembers.
	return m, true
}

// Key is the gang with its API: those of two APIs may have one name.
func (m *Member) Key() string { return m.Gang + "/" + string(m.API) }

// Members are pods of one gang.
func Members(pods []*corev1.Pod) []*Member {
	members := make([]*Member, len(pods))
	for i, pod := range pods {
		members[i] = memberOf(pod)
	}
	return members
}

// memberOf reads what does not depend on the gang.
func memberOf(pod *corev1.Pod) *Member {
	m := &Member{
		Name: pod.Name, Node: pod.Spec.NodeName, problem: problemOf(pod), rank: rank.Of(pod),
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

// Ended is true if the pod succeeded or failed.
func (m *Member) Ended() bool { return m.stage == succeeded || m.stage == failed }

// end is when it ended, in seconds since 1970: far ahead for one that has not, and
// its creation for one of which that is unknown, or that is being deleted.
func (m *Member) end() int64 {
	switch {
	case m.problem == terminating:
		return m.created
	case !m.Ended():
		return math.MaxInt64
	}
	return max(m.created, m.since.Unix())
}

// OrderMembers sorts by rank, as [rank.Order] does.
func OrderMembers(members []*Member) {
	slices.SortFunc(members, func(a, b *Member) int {
		return cmp.Or(a.rank.Compare(b.rank), strings.Compare(a.Name, b.Name))
	})
}

// Problems of pods, in a word or two. Others are the reasons for which a
// container waits.
const (
	hasFailed   = "failed"
	terminating = "terminating"
	lostNode    = "on a lost node"
)

// problemOf reads the status of a pod that has not ended. A lost node is not in it.
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

// rejectionOf is why a pod has no node, and since when that is so: the condition
// PodScheduled. A pod with gates was not rejected.
func rejectionOf(pod *corev1.Pod) (text string, at time.Time) {
	c := condition(pod, corev1.PodScheduled)
	if c.Status != corev1.ConditionFalse {
		return "", at
	}
	text = c.Message
	// Kube-scheduler counts the nodes before the reason, and after it writes why
	// preemption is of no use.
	if count, rest, ok := strings.Cut(text, " nodes are available: "); ok && strings.HasPrefix(count, "0/") {
		text = rest
	}
	for _, tail := range []string{" no new claims to deallocate", " preemption: "} {
		text, _, _ = strings.Cut(text, tail)
	}
	const most = 400 // Bytes of what a scheduler wrote.
	text = wellknown.ClipTo(strings.TrimRight(text, " .,"), most)
	if c.Reason == corev1.PodReasonUnschedulable {
		at = c.LastTransitionTime.Time
	}
	return text, at
}

// sinceOf is when a pod came to its stage, or when its problem began, from its
// status.
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

// containerTimes are when the containers that run were started, and when those that have ended did.
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

// condition is one of a pod; the zero value if it has none of the kind.
func condition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}
