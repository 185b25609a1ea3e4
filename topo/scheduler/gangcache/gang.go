package gangcache

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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
	pod  *corev1.Pod
	spec gang.Spec
	err  error
	// resources is what the pod requests, which never changes.
	resources planner.Member
	stage     stage
	// node is that of a member of stage planned to bound.
	node string
	// notified reports that the pod's condition has the gang's current reason.
	notified bool
}

// live reports that a pod is neither finished, nor terminating, nor held back by
// scheduling gates.
func live(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil || finished(pod) {
		return false
	}
	return len(pod.Spec.SchedulingGates) == 0 || pod.Spec.NodeName != ""
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// schedulable reports that the member waits for the scheduler.
func (m *member) schedulable() bool { return live(m.pod) && m.stage < reserved }

// object is a PodGroup object of one API group.
type object struct {
	spec gang.Spec
	err  error
}

// gangInfo is a gang in the cache.
type gangInfo struct {
	key     types.NamespacedName
	members map[types.UID]*member
	// objects are by API group.
	objects map[string]object

	// spec and err are merged from members and objects, unless outdated.
	spec     gang.Spec
	err      error
	outdated bool
	// revision counts what makes a plan invalid that is not committed yet.
	revision int

	// once reports that the gang had its nodes, which is all that the policy
	// once-satisfied asks for.
	once bool
	// deadline is when the reservations end; zero without any. preempting reports
	// that pods of a lower priority must leave first.
	deadline   time.Time
	preempting bool
	// activated is when planned members were activated last.
	activated time.Time

	// reason is why the gang is rejected, leader the member that tries again for all.
	reason string
	leader types.UID
	// sharedReason is the reason that all members have, and sharedAt since when.
	sharedReason string
	sharedAt     time.Time

	// rejectedSince is since when the gang has been rejected, without its members
	// having had nodes in between. completeSince is when it had the pods that it
	// needs, until they are bound. incompleteSince is when it was complete last.
	rejectedSince, completeSince, incompleteSince time.Time
	// placedIn is the kind of group that the plan stays in.
	placedIn string
	// reportedReason and reportedIgnored are of Events.
	reportedReason  string
	reportedIgnored bool

	// backoff has the nodes that rejected members, retries counts plans around them
	// since the gang released its nodes.
	backoff backoff
	retries int
}

// invalidate is called when members or objects change.
func (g *gangInfo) invalidate() { g.outdated, g.revision = true, g.revision+1 }

// resolve merges what members and objects contain.
func (g *gangInfo) resolve() {
	if !g.outdated {
		return
	}
	g.outdated = false
	var specs []gang.Spec
	var faults []error
	var first *corev1.Pod
	for _, m := range g.ranked() {
		if !live(m.pod) {
			continue
		}
		specs = append(specs, m.spec)
		if first == nil {
			first = m.pod
		}
		if m.err != nil && len(faults) == 0 {
			faults = append(faults, m.err)
		}
		if a, b := schedulehelpers.PodPriority(first), schedulehelpers.PodPriority(m.pod); a != b && m.stage != bound {
			faults = append(faults, fmt.Errorf("its members have the priorities %d and %d", a, b))
		}
		if a, b := first.Spec.SchedulerName, m.pod.Spec.SchedulerName; a != b {
			faults = append(faults, fmt.Errorf("its members are for the schedulers %q and %q", a, b))
		}
	}
	if first == nil {
		g.once = false
	}
	o, objectErr := g.object()
	merged, err := gang.Merge(specs, o)
	g.spec, g.err = merged, errors.Join(append(faults[:min(len(faults), 3)], err, objectErr)...)
	g.spec.Key = g.key
}

// object is the PodGroup of the gang's name; nil without one. There may be one of
// either API group.
func (g *gangInfo) object() (spec *gang.Spec, err error) {
	for _, group := range APIGroups() {
		o, ok := g.objects[group]
		if !ok {
			continue
		}
		err = cmp.Or(err, o.err)
		if spec == nil {
			spec = &o.spec
		} else if spec.MinMember != o.spec.MinMember && err == nil {
			err = fmt.Errorf("podgroups of %s and of %s have minMember %d and %d",
				gang.APIGroup, gang.APIGroupXK8s, spec.MinMember, o.spec.MinMember)
		}
	}
	return spec, err
}

// APIGroups are those of PodGroup objects.
func APIGroups() []string { return []string{gang.APIGroup, gang.APIGroupXK8s} }

// ranked are the members in the order of their ranks.
func (g *gangInfo) ranked() []*member {
	pods := make([]*corev1.Pod, 0, len(g.members))
	for _, m := range g.members {
		pods = append(pods, m.pod)
	}
	gang.Order(pods)
	members := make([]*member, len(pods))
	for i, pod := range pods {
		members[i] = g.members[pod.UID]
	}
	return members
}

// first is the first member that passes, by rank; nil if none does.
func (g *gangInfo) first(pass func(*member) bool) *member {
	for _, m := range g.members {
		if pass(m) { // Ranks cost more than all members.
			all := g.ranked()
			return all[slices.IndexFunc(all, pass)]
		}
	}
	return nil
}

// count is how many members count towards the minimum if those of a stage and later
// have a node.
func (g *gangInfo) count(from stage) int {
	n := 0
	for _, m := range g.members {
		switch {
		case m.stage == done:
			if g.spec.Policy == gang.WaitingRunningSucceed && m.pod.Status.Phase == corev1.PodSucceeded {
				n++
			}
		case m.stage == bound && g.spec.Policy == gang.OnlyWaiting, !live(m.pod):
		case m.stage >= from:
			n++
		}
	}
	return n
}

// doneWith reports that the policy asks no more of the gang.
func (g *gangInfo) doneWith() bool { return g.once && g.spec.Policy == gang.OnceSatisfied }

// satisfied reports that enough members have a node.
func (g *gangInfo) satisfied() bool {
	return g.doneWith() || g.spec.MinMember > 0 && g.count(reserved) >= g.spec.MinMember
}

// hasReservedEnough reports that a plan reserves as many nodes as the gang needs,
// which not all of its members hold yet.
func (g *gangInfo) hasReservedEnough() bool {
	return !g.deadline.IsZero() && g.spec.MinMember > 0 && g.count(planned) >= g.spec.MinMember && !g.satisfied()
}

// unplan takes the nodes of planned members back.
func (g *gangInfo) unplan() {
	g.revision++
	for _, m := range g.members {
		if m.stage == planned {
			m.stage, m.node = pending, ""
		}
	}
}

// snapshot is the gang for the planner.
func (g *gangInfo) snapshot(now time.Time) planner.Gang {
	out := planner.Gang{Key: g.key, Revision: g.revision, Spec: g.spec, Avoid: g.backoff.nodes(now)}
	for _, m := range g.ranked() {
		if !live(m.pod) {
			continue
		}
		of := m.resources
		if m.stage >= planned {
			of.Node = m.node
			out.MinMember++
		}
		out.Members = append(out.Members, of)
	}
	if g.satisfied() {
		out.MinMember++
	} else {
		out.MinMember += max(1, g.spec.MinMember-g.count(planned))
	}
	return out
}
