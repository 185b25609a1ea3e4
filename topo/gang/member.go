package gang

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// Member is one pod of a gang, as much of it as [StateOfMembers] needs: for
// those who watch many pods and keep few facts of each. Two members are the same
// if they are equal.
type Member struct {
	// Gang is "namespace/name".
	Gang string
	Name string
	// Node is spec.nodeName.
	Node string
	// GPUs is how many it asks for; whoever knows the name of the resource says
	// it.
	GPUs int32
	// MinMember is what the pod says, 0 for nothing.
	MinMember int32

	// since is when it came to its stage, or into trouble; rejected is since
	// when no node is good enough for it.
	since, rejected second
	stage           stage
	trouble         trouble
	// refusal is why it has no node, in the scheduler's words.
	refusal string
	rank    rank
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

// MemberOf reads a pod; false if it is in no gang. What else the pod says wrongly
// of its gang is the scheduler's to tell.
func MemberOf(pod *corev1.Pod) (*Member, bool) {
	if !Mentions(pod) {
		return nil, false
	}
	// The domains are for gpu-group-size, which is not used here.
	spec, _ := Read(pod, wellknown.DefaultDomains()) // Its faults are refusals.
	if spec.Key.Name == "" {
		return nil, false
	}
	m := memberOf(pod)
	m.Gang, m.MinMember = spec.Key.String(), int32(spec.MinMember) //nolint:gosec // At most MaxMembers.
	return m, true
}

// memberOf reads what does not depend on the gang.
func memberOf(pod *corev1.Pod) *Member {
	m := &Member{Name: pod.Name, Node: pod.Spec.NodeName, trouble: wrong(pod), rank: rankOf(pod)}
	switch {
	case pod.Status.Phase == corev1.PodSucceeded:
		m.stage = succeeded
	case pod.Status.Phase == corev1.PodFailed:
		m.stage = failed
	case pod.Spec.NodeName == "":
		m.refusal, m.rejected = refusal(pod)
	case pod.Status.Phase == corev1.PodRunning:
		m.stage = running
	default:
		m.stage = bound
	}
	m.since = since(pod, m.stage, m.trouble != none)
	return m
}

// Intern gives equal strings of many members one place in memory; one returns
// the copy to keep, and is not asked for names of pods. refusal is for texts,
// which are longer and come and go.
func (m *Member) Intern(one, refusal func(string) string) {
	m.Gang, m.Node, m.rank.task = one(m.Gang), one(m.Node), one(m.rank.task)
	m.refusal = refusal(m.refusal)
}

// Ended tells that the pod has ended, well or not.
func (m *Member) Ended() bool { return m.stage == succeeded || m.stage == failed }

// OrderMembers sorts by rank, as [Order] does.
func OrderMembers(members []*Member) {
	slices.SortFunc(members, func(a, b *Member) int {
		return cmp.Or(a.rank.compare(b.rank), strings.Compare(a.Name, b.Name))
	})
}

// trouble is what is the matter with a pod.
type trouble uint8

const (
	none trouble = iota
	hasFailed
	terminating
	lostNode
	imagePullBackOff
	errImagePull
	invalidImageName
	crashLoopBackOff
	createContainerConfigError
)

// String is the trouble in a word or two.
func (t trouble) String() string {
	return [...]string{
		"", "failed", "terminating", "on a lost node", "in ImagePullBackOff", "in ErrImagePull", "in InvalidImageName",
		"in CrashLoopBackOff", "in CreateContainerConfigError",
	}[t]
}

// wrong is what is the matter with a pod. A lost node is not in the pod.
func wrong(pod *corev1.Pod) trouble {
	switch {
	case pod.Status.Phase == corev1.PodSucceeded:
		return none
	case pod.Status.Phase == corev1.PodFailed:
		return hasFailed
	case pod.DeletionTimestamp != nil:
		return terminating
	}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			state := list[i].State.Waiting
			if state == nil {
				continue
			}
			for t := imagePullBackOff; t <= createContainerConfigError; t++ {
				if t.String() == "in "+state.Reason {
					return t
				}
			}
		}
	}
	return none
}

// maxRefusal bounds what a scheduler wrote, in bytes.
const maxRefusal = 400

// refusal is why a pod has no node, and since when that is so: the condition
// PodScheduled. A pod with gates was not refused.
func refusal(pod *corev1.Pod) (text string, at second) {
	c := condition(pod, corev1.PodScheduled)
	if c == nil || c.Status != corev1.ConditionFalse {
		return "", 0
	}
	text = c.Message
	// Kube-scheduler counts the nodes before the reason, and after it says why
	// preemption is of no use.
	if count, rest, ok := strings.Cut(text, " nodes are available: "); ok && strings.HasPrefix(count, "0/") {
		text = rest
	}
	for _, tail := range []string{" no new claims to deallocate", " preemption: "} {
		text, _, _ = strings.Cut(text, tail)
	}
	text = strings.TrimRight(text, " .,")
	if len(text) > maxRefusal {
		text = strings.ToValidUTF8(text[:maxRefusal], "") + "..."
	}
	if c.Reason == corev1.PodReasonUnschedulable {
		at = seconds(c.LastTransitionTime)
	}
	return text, at
}
