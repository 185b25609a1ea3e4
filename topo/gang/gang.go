// Package gang reads what pods and PodGroup objects state about gangs: pods that run together
// or not at all.
//
// It owns all spellings of a gang and converts them to one struct. It rejects contradictory and
// invalid values with the key's name, and summarizes the state of a gang for users. It does not
// decide about nodes, watches nothing and writes nothing.
//
// # Spellings
//
// The name of a gang, in the pod's namespace, is in the label
// pod-group.scheduling.sigs.k8s.io/name or pod-group.scheduling.sigs.k8s.io or
// scheduling.x-k8s.io/pod-group, or in the annotation
// gang.scheduling.koordinator.sh/name. How many members it needs is in
// pod-group.scheduling.sigs.k8s.io/min-available (label or annotation), in
// Koordinator's min-available (annotation), or in the PodGroup object of that
// name, of either API group. A PodGroup of Kubernetes' own API
// (scheduling.k8s.io) has both in its fields; see [ReadPlacement].
//
// The annotation heddle.dev/gang makes a gang of what one controller makes: a
// Job, a JobSet, a group of a LeaderWorkerSet, a Kubeflow job, a Ray cluster. Its
// name is the controller's, and the annotation's value the number of members, or
// "true" for a LeaderWorkerSet, since its pods contain it.
//
// heddle-scheduler places these gangs. [MemberOf], for programs that only display gangs, knows
// those of other schedulers, queues and operators too.
//
// # Contradictions and bad input
//
// Two spellings of one field with different values are rejected: on one pod, between members, and
// between a pod and its PodGroup object. A value may be missing. The number of members, the group
// of gangs and the size of slices are never guessed: the pod is rejected with the key's name. Keys
// of Koordinator that would let half a gang run are ignored and reported. docs/concepts/scheduling.md has the
// values of all keys.
package gang

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Policy selects the members that count towards MinMember.
type Policy string

// The policies. Waiting pods have a node reserved; running pods are bound and not finished.
const (
	OnceSatisfied         Policy = "once-satisfied"
	OnlyWaiting           Policy = "only-waiting"
	WaitingAndRunning     Policy = "waiting-and-running"
	WaitingRunningSucceed Policy = "waiting-running-succeed"
)

// WithoutMap selects what happens to a gang while the topology of the fabric is
// unknown or too old.
type WithoutMap string

// The values of WithoutMap.
const (
	Wait  WithoutMap = "wait"
	Place WithoutMap = "place"
)

// DefaultTimeout is the time that members with a node wait for the others.
const DefaultTimeout = time.Minute

// Bounds on what pods and objects contain.
const (
	MaxMembers   = 100000
	MaxGroups    = 64
	MaxGroupSize = 1 << 20
	maxTimeout   = 24 * time.Hour
)

// Spec describes a gang, by one pod, by a PodGroup object, or by all of them. Missing fields
// are zero.
type Spec struct {
	Key types.NamespacedName
	// Created is the creation time of a PodGroup object; zero for pods.
	Created time.Time
	// MinMember is the number of members that must run for any to run.
	MinMember int
	// Groups are the gangs that run together or not at all, sorted and including Key.
	Groups []types.NamespacedName
	Policy Policy
	// Timeout is the time that members with a node wait for the others.
	Timeout time.Duration
	// GroupSize is the size of a slice in GPUs.
	GroupSize int
	// Required and Preferred are kinds of group, such as leaf.
	Required, Preferred string
	// WithoutMap is empty if the scheduler's configuration decides.
	WithoutMap WithoutMap
	// Ignored are keys without effect, with the reason.
	Ignored []string
}

// Alone reports whether the gang is not in a group of gangs.
func (s *Spec) Alone() bool { return len(s.Groups) <= 1 }

// Merge combines the specs of a gang's members, in any order, and of its PodGroup object, which
// may be nil. Their values must agree. The error names those that do not; the result then
// has the first of the values.
func Merge(members []Spec, object *Spec) (Spec, error) {
	var m merger
	for i := range members {
		m.add(&members[i], "its members have")
	}
	if object != nil {
		m.add(object, "its members and its PodGroup object have")
		// The timeout is a preference, so that members may differ. The object takes precedence,
		// then the longest.
		m.gang.Timeout = cmp.Or(object.Timeout, m.gang.Timeout)
	}
	m.gang.Policy = cmp.Or(m.gang.Policy, OnceSatisfied)
	m.gang.Timeout = cmp.Or(m.gang.Timeout, DefaultTimeout)
	slices.Sort(m.gang.Ignored)
	return m.gang, errors.Join(m.errs...)
}

type merger struct {
	gang Spec
	errs []error
}

func (m *merger) add(s *Spec, sources string) {
	g := &m.gang
	g.Key = s.Key
	merge(m, sources, "min-available", &g.MinMember, s.MinMember)
	merge(m, sources, "match-policy", &g.Policy, s.Policy)
	merge(m, sources, "gpu-group-size", &g.GroupSize, s.GroupSize)
	merge(m, sources, "required level", &g.Required, s.Required)
	merge(m, sources, "preferred level", &g.Preferred, s.Preferred)
	merge(m, sources, "without map", &g.WithoutMap, s.WithoutMap)
	switch {
	case g.Groups == nil:
		g.Groups = s.Groups
	case s.Groups != nil && !slices.Equal(g.Groups, s.Groups):
		m.errorf("groups: %s different values", sources)
	}
	g.Timeout = max(g.Timeout, s.Timeout)
	for _, text := range s.Ignored {
		if len(g.Ignored) < MaxGroups && !slices.Contains(g.Ignored, text) {
			g.Ignored = append(g.Ignored, text)
		}
	}
}

// merge takes a value over, or records that it differs.
func merge[T comparable](m *merger, sources, what string, to *T, value T) {
	var none T
	switch {
	case value == none || value == *to:
	case *to == none:
		*to = value
	default:
		m.errorf("%s: %s %v and %v", what, sources, *to, value)
	}
}

// errorf drops duplicates: thousands of members may have the same fault.
func (m *merger) errorf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if len(m.errs) < 4 && !slices.ContainsFunc(m.errs, func(had error) bool { return had.Error() == err.Error() }) {
		m.errs = append(m.errs, err)
	}
}
