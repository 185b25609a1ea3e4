package gangcache

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

// object is a PodGroup object of one API group.
type object struct {
	spec gang.Spec
	err  error
}

// APIGroups returns the API groups of PodGroup objects.
func APIGroups() []string { return []string{wellknown.PodGroupAPI, wellknown.PodGroupAPIXK8s} }

// gangInfo is a gang in the cache.
type gangInfo struct {
	key     types.NamespacedName
	members map[types.UID]*member
	// objects is keyed by API group.
	objects map[string]object

	// spec and err are merged from members and objects, unless outdated.
	spec     gang.Spec
	err      error
	outdated bool
	// revision counts the changes that invalidate a plan which is not committed yet.
	revision int

	// once reports that the gang had its nodes, which satisfies the policy once-satisfied.
	once bool
	// deadline is the end of the reservations; zero without reservations. preemption is nil
	// unless pods must leave first.
	deadline   time.Time
	preemption *preemption
	// activated is the time of the last activation of planned members, or of the leader for a hold. holdAgain is the
	// time from which nodes may be searched for a hold again.
	activated, holdAgain time.Time

	rejected rejection

	// completeSince is the time since which the gang has the pods that it needs, until they are
	// bound. incompleteSince is the time when it was last complete.
	completeSince, incompleteSince time.Time
	// created is the creation time of its first pod or object.
	created time.Time
	// placedIn is the kind of group that holds the plan.
	placedIn string
	// reportedReason and reportedIgnored are the contents of recorded Events.
	reportedReason  string
	reportedIgnored bool
	// retries counts plans around nodes that rejected members, since the gang released
	// its nodes.
	retries int
}

// invalidate is called when members or objects change.
func (g *gangInfo) invalidate() { g.outdated, g.revision = true, g.revision+1 }

// born keeps the earliest creation of the gang's pods and objects.
func (g *gangInfo) born(at time.Time) {
	if !at.IsZero() && (g.created.IsZero() || at.Before(g.created)) {
		g.created = at
	}
}

// resolve merges the specs of members and objects.
func (g *gangInfo) resolve() {
	if !g.outdated {
		return
	}
	g.outdated = false
	var specs []gang.Spec
	var faults []error
	members := g.ranked((*member).live)
	for _, m := range members {
		specs = append(specs, m.spec)
		if m.err != nil && len(faults) == 0 {
			faults = append(faults, m.err)
		}
		first := members[0]
		if a, b := first.priority(), m.priority(); a != b && m.stage != bound {
			faults = append(faults, fmt.Errorf("its members have the priorities %d and %d", a, b))
		}
		if a, b := first.Pod.Spec.SchedulerName, m.Pod.Spec.SchedulerName; a != b {
			faults = append(faults, fmt.Errorf("its members are for the schedulers %q and %q", a, b))
		}
	}
	if len(members) == 0 || !g.started() {
		g.once = false // All of its pods were replaced: the name now stands for a new gang.
		for _, m := range g.members {
			m.unbound = false
		}
	}
	o, objectErr := g.object()
	merged, err := gang.Merge(specs, o)
	g.spec, g.err = merged, errors.Join(append(faults[:min(len(faults), 3)], err, objectErr)...)
	g.spec.Key = g.key
}

// object returns the PodGroup of the gang's name, of either API group; nil if it does not exist.
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
				wellknown.PodGroupAPI, wellknown.PodGroupAPIXK8s, spec.MinMember, o.spec.MinMember)
		}
	}
	return spec, err
}

// ranked returns the members that pass, ordered by rank.
func (g *gangInfo) ranked(pass func(*member) bool) (members []*member) {
	var pods []*corev1.Pod
	for _, m := range g.members {
		if pass(m) {
			pods = append(pods, m.Pod)
		}
	}
	placement.OrderPods(pods)
	for _, pod := range pods {
		members = append(members, g.members[pod.UID])
	}
	return members
}

// any reports whether a member passes.
func (g *gangInfo) any(pass func(*member) bool) bool {
	for _, m := range g.members {
		if pass(m) {
			return true
		}
	}
	return false
}

// have counts the members of a stage or later.
func (g *gangInfo) have(from stage) (n int) {
	for _, m := range g.members {
		if m.stage >= from {
			n++
		}
	}
	return n
}

// partlyBound reports that members could not be bound with the others.
func (g *gangInfo) partlyBound() bool {
	return g.any(func(m *member) bool { return m.unbound && m.live() })
}

// count counts the members of a stage and later that count for the minimum. If members could
// not be bound with the others, running members count with any policy.
func (g *gangInfo) count(from stage) (n int) {
	onlyWaiting := g.spec.Policy == gang.OnlyWaiting && !g.partlyBound()
	for _, m := range g.members {
		switch {
		case m.stage == done:
			if g.spec.Policy == gang.WaitingRunningSucceed && m.Pod.Status.Phase == corev1.PodSucceeded {
				n++
			}
		case m.stage == bound && onlyWaiting, !m.live():
		case m.stage >= from:
			n++
		}
	}
	return n
}

// started reports that a pod which had its node with the gang still counts: it runs or has
// succeeded. A pod that failed or terminates will be replaced.
func (g *gangInfo) started() bool {
	return g.any(func(m *member) bool {
		succeeded := m.Pod.Status.Phase == corev1.PodSucceeded && m.Pod.DeletionTimestamp == nil
		return succeeded || m.live() && m.stage >= released
	})
}

// doneWith reports that the policy requires nothing more.
func (g *gangInfo) doneWith() bool { return g.once && g.spec.Policy == gang.OnceSatisfied }

// satisfied reports that enough members have a node.
func (g *gangInfo) satisfied() bool {
	return g.doneWith() || g.spec.MinMember > 0 && g.count(reserved) >= g.spec.MinMember
}

// place gives pending members the nodes of a plan, and returns those that got one. p is nil
// unless pods must leave first.
func (g *gangInfo) place(asked []planner.Member, place *planner.Place, p *preemption) (got []*member) {
	for at, node := range place.Nodes {
		if m := g.members[asked[at].Pod.UID]; node != "" && m.stage == pending {
			m.stage, m.Node, m.Class = planned, node, asked[at].Class // With its claims.
			m.tried = false
			got = append(got, m)
		}
	}
	if !g.satisfied() {
		g.placedIn = place.Kind
	}
	g.preemption, g.activated = p, time.Now()
	g.deadline = time.Now().Add(max(g.spec.Timeout, p.timeout()))
	return got
}

// unplan takes the nodes of planned members back.
func (g *gangInfo) unplan() {
	g.revision++
	for _, m := range g.members {
		if m.stage == planned {
			m.stage, m.Node = pending, ""
		}
	}
}

// start releases the members that hold their nodes, and returns them.
func (g *gangInfo) start() (started []*member) {
	for _, m := range g.members {
		if m.stage == reserved {
			m.stage = released
			started = append(started, m)
		}
	}
	g.rejected.accept()
	g.once, g.rejected.since, g.retries = true, time.Time{}, 0
	return started
}

func (g *gangInfo) rejection(reason string) string { return Rejection(g.key, reason) }

// elect makes a member the leader: the first that waits, unless one is given.
func (g *gangInfo) elect(leader *member) {
	if leader == nil {
		leader = append(g.ranked((*member).schedulable), nil)[0]
	}
	g.rejected.leader = leader
}

// snapshot returns the gang for the planner, which avoids some nodes.
func (g *gangInfo) snapshot(avoid []string) planner.Gang {
	out := planner.Gang{Key: g.key, Revision: g.revision, Spec: g.spec, Avoid: avoid}
	for _, m := range g.ranked((*member).live) {
		if m.stage >= planned {
			out.MinMember++
		}
		out.Members = append(out.Members, m.Member)
	}
	if g.satisfied() {
		out.MinMember++
	} else {
		out.MinMember += max(1, g.spec.MinMember-g.count(planned))
	}
	return out
}

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
	// Member has the pod, its requests, which never change, and in the stages planned to bound its
	// node.
	planner.Member
	gang  *gangInfo
	spec  gang.Spec
	err   error
	stage stage
	// unbound reports that binding failed after the gang had its nodes.
	unbound bool
	// admitted reports that the scheduler's queue has the pod, tried that its node takes it once
	// the pods of a preemption have left.
	admitted, tried bool
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// live reports that the pod is neither finished nor terminating, and has no scheduling gates.
func (m *member) live() bool {
	if m.Pod.DeletionTimestamp != nil || finished(m.Pod) {
		return false
	}
	return len(m.Pod.Spec.SchedulingGates) == 0 || m.Pod.Spec.NodeName != ""
}

// onItsWay reports that a node is reserved for the member, which is not being bound yet.
func (m *member) onItsWay() bool { return m.stage == planned || m.stage == reserved }

// schedulable reports that the member waits for the scheduler.
func (m *member) schedulable() bool { return m != nil && m.live() && m.stage < reserved }

// waits reports that the member waits for the scheduler and has no node by a plan.
func (m *member) waits() bool { return m.schedulable() && m.stage == pending }

func (m *member) priority() int32 { return schedulehelpers.PodPriority(m.Pod) }

// rejection explains why a gang has no nodes. One member, the leader, tries again for all; the
// others repeat its reason.
type rejection struct {
	// reason is empty for a gang that is not rejected.
	reason string
	// since is the time of the first rejection after the gang lost its nodes.
	since  time.Time
	leader *member
	// shared is when all members were last tried to show a reason of another kind.
	shared time.Time
}

// shareEvery is the least time between two reasons that all members show, since each writes to all
// pods.
const shareEvery = time.Minute

// kindOf returns a reason without the parts that change whenever a pod starts or ends: its
// numbers, and the group that comes closest.
func kindOf(reason string) string {
	what, _, _ := strings.Cut(reason, ",")
	return strings.Join(strings.FieldsFunc(what, unicode.IsDigit), "")
}

// accept ends the rejection of a gang that has a plan. since stays until its members have
// nodes.
func (r *rejection) accept() { r.reason, r.leader = "", nil }

// repeats reports whether a member shows the leader's reason instead of a try.
func (r *rejection) repeats(m *member) bool {
	return r.reason != "" && r.leader != m && r.leader.schedulable() && m.stage == pending
}

// Rejection returns what a member shows.
func Rejection(gang types.NamespacedName, reason string) string {
	return fmt.Sprintf("rejected by podgroup %s: %s", gang.Name, reason)
}
