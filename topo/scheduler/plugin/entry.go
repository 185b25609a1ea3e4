package plugin

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// stage is how far a member of a gang is.
type stage int

const (
	// pending members have no node.
	pending stage = iota
	// planned ones have been promised one.
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
	pod   *corev1.Pod
	spec  gang.Spec
	fault error
	class *fit.Class
	gpus  int
	stage stage
	// node is where a member of stage planned to bound is.
	node string
	// told tells that the pod says why it has no node.
	told bool
}

// live members are neither finished, nor on their way out, nor held back by
// gates of their own.
func (m *member) live() bool { return alive(m.pod) }

// waits tells that the member is for the scheduler to place.
func (m *member) waits() bool { return m.live() && m.stage < reserved }

// entry is a gang.
type entry struct {
	key     types.NamespacedName
	members map[types.UID]*member
	// object is what the PodGroup objects say; nil without one. said is by API
	// group.
	object      *gang.Spec
	objectFault error
	said        map[string]said

	// gang and fault are of all that is said; stale tells that they are old.
	gang  gang.Spec
	fault error
	stale bool

	// once tells that the gang was satisfied and the policy asks no more.
	once bool
	// deadline is when the promises end; zero without any.
	deadline time.Time
	// preempting tells that the promises are of room that others still have.
	preempting bool
	// nudged is when members with a place were called last.
	nudged time.Time
	// called tells that the members with a place were called to be tried.
	called bool
	// refusal is why the gang has no node; leader is the member that tries
	// again for all.
	refusal string
	leader  types.UID
	// rejected is since when the gang has been refused, without its members
	// having had nodes in between; complete when it had the pods that it needs,
	// until they are bound; reached is the kind of group that its plan stays in.
	rejected, complete time.Time
	reached            string
	// since is when the gang was complete last, or came to be.
	since time.Time
	// noticed is what people were told of pods that lack, and remarked tells
	// that they were told of what is ignored.
	noticed  string
	remarked bool
	// spread is the refusal that all members were told, and spreadAt when.
	spread   string
	spreadAt time.Time
	// avoid are nodes that turned members away for what no plan sees.
	avoid map[string]time.Time
	// turns is how often that happened since the gang had all its nodes last,
	// retries since it let go of all.
	turns, retries int
}

// settle makes gang and fault of what is said now.
func (b *book) settle(e *entry) {
	if !e.stale {
		return
	}
	e.stale = false
	specs := make([]gang.Spec, 0, len(e.members))
	var faults []error
	priority, scheduler, lives := int32(0), "", 0
	for _, m := range ordered(e) {
		if !m.live() {
			continue
		}
		specs = append(specs, m.spec)
		if m.fault != nil && len(faults) == 0 {
			faults = append(faults, m.fault)
		}
		if p := priorityOf(m.pod); lives == 0 {
			priority = p
		} else if p != priority && m.stage != bound {
			faults = append(faults, fmt.Errorf("its members have the priorities %d and %d", priority, p))
		}
		if lives == 0 {
			scheduler = m.pod.Spec.SchedulerName
		} else if other := m.pod.Spec.SchedulerName; other != scheduler {
			faults = append(faults, fmt.Errorf("its members are for the schedulers %q and %q", scheduler, other))
		}
		lives++
	}
	if lives == 0 {
		e.once = false
	}
	merged, err := gang.Merge(specs, e.object)
	e.gang, e.fault = merged, errors.Join(append(faults[:min(len(faults), 3)], err, e.objectFault)...)
	e.gang.Key = e.key
}

func priorityOf(pod *corev1.Pod) int32 {
	if pod.Spec.Priority != nil {
		return *pod.Spec.Priority
	}
	return 0
}

// ordered are the members by rank.
func ordered(e *entry) []*member {
	pods := make([]*corev1.Pod, 0, len(e.members))
	for _, m := range e.members {
		pods = append(pods, m.pod)
	}
	gang.Order(pods)
	members := make([]*member, len(pods))
	for i, pod := range pods {
		members[i] = e.members[pod.UID]
	}
	return members
}

// count is how many members count towards the minimum if those of stage least
// and later have a node.
func (e *entry) count(least stage) int {
	n := 0
	for _, m := range e.members {
		switch {
		case m.stage == done:
			if e.gang.Policy == gang.WaitingRunningSucceed && m.pod.Status.Phase == corev1.PodSucceeded {
				n++
			}
		case m.stage == bound && e.gang.Policy == gang.OnlyWaiting, !m.live():
		case m.stage >= least:
			n++
		}
	}
	return n
}

// satisfied tells that enough members of the gang have a node.
func (e *entry) satisfied() bool {
	if e.once && e.gang.Policy == gang.OnceSatisfied {
		return true
	}
	return e.gang.MinMember > 0 && e.count(reserved) >= e.gang.MinMember
}

// unit is a gang and those that it runs with or not at all. missing is the
// first of them that nobody has heard of.
func (b *book) unit(e *entry) (unit []*entry, missing *types.NamespacedName) {
	b.settle(e)
	if e.gang.Alone() {
		return []*entry{e}, nil
	}
	for i := range e.gang.Groups {
		other := b.gangs[e.gang.Groups[i]]
		if other == nil {
			if missing == nil {
				missing = &e.gang.Groups[i]
			}
			continue
		}
		b.settle(other)
		unit = append(unit, other)
	}
	return unit, missing
}

// complete tells whether a gang has the pods that it needs, and whether those
// that it runs with have theirs; else what it waits for. A fault is for the
// scheduling cycle to tell.
func (b *book) complete(e *entry) (bool, string) {
	unit, missing := b.unit(e)
	if e.fault != nil || e.once && e.gang.Policy == gang.OnceSatisfied {
		return true, ""
	}
	if missing != nil {
		return false, fmt.Sprintf("podgroup %s waits for podgroup %s of its groups: there is none", e.key.Name, missing)
	}
	for _, u := range unit {
		if u.fault != nil || u.once && u.gang.Policy == gang.OnceSatisfied {
			continue
		}
		switch n := u.count(pending); {
		case u.gang.MinMember == 0:
			return false, fmt.Sprintf("podgroup %s has no min-available, and no PodGroup object says it", u.key.Name)
		case n < u.gang.MinMember:
			return false, fmt.Sprintf("podgroup %s waits for pods: %d of %d exist", u.key.Name, n, u.gang.MinMember)
		}
	}
	return true, ""
}
