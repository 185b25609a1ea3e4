package gang

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// Member is one pod of a gang, as much of it as [StateOfMembers] needs: for
// watchers of many pods that keep little of each. Two members are the same if
// they are equal.
type Member struct {
	// Gang is "namespace/name".
	Gang string
	Name string
	// Node is spec.nodeName.
	Node string
	// GPUs is how many it asks for; the caller sets it, since the name of the
	// resource depends on the vendor.
	GPUs int32
	// MinMember is the pod's, 0 without any.
	MinMember int32

	// since is when it came to its stage, or when its problem began; rejected is
	// since when no node is good enough for it.
	since, rejected second
	stage           stage
	problem         string
	// rejection is why it has no node, as the scheduler wrote it.
	rejection string
	rank      rank
}

// second counts from 1970, to the year 2106; 0 is unknown.
type second uint32

// stage is how far a pod has come.
type stage uint8

const (
	waiting stage = iota // It has no node.
	bound
	running
	succeeded
	failed
)

// MemberOf reads a pod; false if it is in no gang. The scheduler reports what
// else is invalid.
func MemberOf(pod *corev1.Pod) (*Member, bool) {
	if !Mentions(pod) {
		return nil, false
	}
	// The domains are for gpu-group-size, which is not used here.
	spec, _ := Read(pod, wellknown.DefaultDomains())
	if spec.Key.Name == "" {
		return nil, false
	}
	m := memberOf(pod)
	m.Gang, m.MinMember = spec.Key.String(), int32(spec.MinMember) //nolint:gosec // At most MaxMembers.
	return m, true
}

// memberOf reads what does not depend on the gang.
func memberOf(pod *corev1.Pod) *Member {
	m := &Member{Name: pod.Name, Node: pod.Spec.NodeName, problem: problemOf(pod), rank: rankOf(pod)}
	switch {
	case pod.Status.Phase == corev1.PodSucceeded:
		m.stage = succeeded
	case pod.Status.Phase == corev1.PodFailed:
		m.stage = failed
	case pod.Spec.NodeName == "":
		m.rejection, m.rejected = rejectionOf(pod)
	case pod.Status.Phase == corev1.PodRunning:
		m.stage = running
	default:
		m.stage = bound
	}
	m.since = m.sinceOf(pod)
	return m
}

// Intern gives equal strings of many members one place in memory; name returns
// the copy to keep, and is not called for names of pods. text is for
// rejections, which are longer and come and go.
func (m *Member) Intern(name, text func(string) string) {
	m.Gang, m.Node, m.rank.task = name(m.Gang), name(m.Node), name(m.rank.task)
	m.rejection = text(m.rejection)
}

// Ended is true if the pod succeeded or failed.
func (m *Member) Ended() bool { return m.stage == succeeded || m.stage == failed }

// OrderMembers sorts by rank, as [Order] does.
func OrderMembers(members []*Member) {
	slices.SortFunc(members, func(a, b *Member) int {
		return cmp.Or(a.rank.compare(b.rank), strings.Compare(a.Name, b.Name))
	})
}

// Problems of pods, in a word or two. Others are the reasons for which a
// container waits.
const (
	hasFailed   = "failed"
	terminating = "terminating"
	lostNode    = "on a lost node"
)

// problemOf reads the status. A lost node is not in the pod.
func problemOf(pod *corev1.Pod) string {
	switch {
	case pod.Status.Phase == corev1.PodSucceeded:
		return ""
	case pod.Status.Phase == corev1.PodFailed:
		return hasFailed
	case pod.DeletionTimestamp != nil:
		return terminating
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			if list[i].State.Waiting == nil {
				continue
			}
			// Constants, so that members share the text.
			switch list[i].State.Waiting.Reason {
			case "ImagePullBackOff":
				return "in ImagePullBackOff"
			case "ErrImagePull":
				return "in ErrImagePull"
			case "InvalidImageName":
				return "in InvalidImageName"
			case "CrashLoopBackOff":
				return "in CrashLoopBackOff"
			case "CreateContainerConfigError":
				return "in CreateContainerConfigError"
			}
		}
	}
	return ""
}

// maxRejection bounds what a scheduler wrote, in bytes.
const maxRejection = 400

// rejectionOf is why a pod has no node, and since when that is so: the condition
// PodScheduled. A pod with gates was not rejected.
func rejectionOf(pod *corev1.Pod) (text string, at second) {
	c := condition(pod, corev1.PodScheduled)
	if c == nil || c.Status != corev1.ConditionFalse {
		return "", 0
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
	text = strings.TrimRight(text, " .,")
	if len(text) > maxRejection {
		text = strings.ToValidUTF8(text[:maxRejection], "") + "..."
	}
	if c.Reason == corev1.PodReasonUnschedulable {
		at = seconds(c.LastTransitionTime)
	}
	return text, at
}

// sinceOf is when a pod came to its stage, or when its problem began, from its
// status.
func (m *Member) sinceOf(pod *corev1.Pod) second {
	switch {
	case m.Ended():
		return ended(pod)
	case pod.DeletionTimestamp != nil:
		// The timestamp is when the grace period ends.
		at := pod.DeletionTimestamp.Time
		if grace := pod.DeletionGracePeriodSeconds; grace != nil {
			at = at.Add(-time.Duration(min(max(*grace, 0), math.MaxInt32)) * time.Second)
		}
		return seconds(metav1.Time{Time: at})
	case m.problem != "":
		// It has not been ready since then.
		return changed(pod, corev1.PodReady)
	case m.stage == waiting:
		return seconds(pod.CreationTimestamp)
	case m.stage == bound:
		return changed(pod, corev1.PodScheduled)
	}
	return started(pod)
}

// ended is when the last container did.
func ended(pod *corev1.Pod) second {
	last := second(0)
	for i := range pod.Status.ContainerStatuses {
		if t := pod.Status.ContainerStatuses[i].State.Terminated; t != nil {
			last = max(last, seconds(t.FinishedAt))
		}
	}
	if last == 0 {
		return changed(pod, corev1.PodReady)
	}
	return last
}

// started is when the first of the running containers did.
func started(pod *corev1.Pod) second {
	first := second(0)
	for i := range pod.Status.ContainerStatuses {
		if r := pod.Status.ContainerStatuses[i].State.Running; r != nil {
			if at := seconds(r.StartedAt); first == 0 || at < first {
				first = at
			}
		}
	}
	if first == 0 && pod.Status.StartTime != nil {
		return seconds(*pod.Status.StartTime)
	}
	return first
}

func changed(pod *corev1.Pod, kind corev1.PodConditionType) second {
	if c := condition(pod, kind); c != nil {
		return seconds(c.LastTransitionTime)
	}
	return 0
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}

func seconds(at metav1.Time) second {
	return second(max(0, min(at.Unix(), math.MaxUint32)))
}
