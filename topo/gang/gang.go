// Package gang reads what pods and PodGroup objects say about gangs: pods that
// run together or not at all.
//
// It owns every spelling of a gang and makes one struct of them, says what is
// contradictory or senseless and names the key, orders the members by rank, and
// tells the state of a gang in people's words. It decides nothing about nodes,
// watches nothing and writes nothing.
//
// # Spellings
//
// The name of a gang, in the pod's namespace, is in the label
// pod-group.scheduling.sigs.k8s.io/name or pod-group.scheduling.sigs.k8s.io or
// scheduling.x-k8s.io/pod-group, or in the annotation
// gang.scheduling.koordinator.sh/name. How many members it needs is in
// pod-group.scheduling.sigs.k8s.io/min-available (label or annotation), in
// Koordinator's min-available (annotation), or in the PodGroup object of that
// name, of either API group.
//
// # Rules for contradictions and bad input
//
// What says how many, with whom or how large slices are is never guessed: the
// pod is refused with the key's name.
//
//   - Two spellings of one thing with different values are refused: on one pod,
//     between members, and between a pod and its PodGroup object. Nothing said
//     is no contradiction.
//   - min-available is 1 to 100000, in digits.
//   - An unknown match-policy is refused. A gang that Koordinator's annotations
//     name is once-satisfied; another known policy is ignored with a remark.
//   - groups is an annotation with a JSON list of "namespace/name", at most 64;
//     a name alone is in the pod's namespace. A label of that key is refused,
//     since no label value is JSON. The gang itself is added if it is missing.
//   - gpu-group-size is 1 to 1048576 in digits. Two values among the members
//     are refused.
//   - Koordinator's total-number and mode are ignored with a remark: the first
//     adds nothing to min-available, and the second would let half a gang run.
//   - min-available that is larger than the number of pods is no fault that a
//     pod shows: the gang waits for the others, and its state says for how many.
//   - A key without a gang's name (min-available alone) is refused, but for
//     gpu-group-size, which a single pod may carry.
package gang

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Policy tells which members count towards MinMember.
type Policy string

// The policies. Pods that wait have a node reserved; running ones are bound and
// not finished.
const (
	OnceSatisfied         Policy = "once-satisfied"
	OnlyWaiting           Policy = "only-waiting"
	WaitingAndRunning     Policy = "waiting-and-running"
	WaitingRunningSucceed Policy = "waiting-running-succeed"
)

// Known tells whether p is one of the policies.
func (p Policy) Known() bool {
	switch p {
	case OnceSatisfied, OnlyWaiting, WaitingAndRunning, WaitingRunningSucceed:
		return true
	}
	return false
}

// WithoutMap is what becomes of a gang while no map of the fabric is known, or
// only one that is too old.
type WithoutMap string

// What to do without a map.
const (
	Wait  WithoutMap = "wait"
	Place WithoutMap = "place"
)

// DefaultTimeout is how long the members that have a node wait for the others.
const DefaultTimeout = time.Minute

// Bounds on what pods and objects say.
const (
	MaxMembers   = 100000
	MaxGroups    = 64
	MaxGroupSize = 1 << 20
	maxTimeout   = 24 * time.Hour
)

// Spec is what one pod, or one PodGroup object, says about its gang. What it
// does not say is the zero value.
type Spec struct {
	Key types.NamespacedName
	// MinMember is how many members must run for any to run.
	MinMember int
	// Groups are the gangs that run together or not at all, Key among them,
	// sorted.
	Groups []types.NamespacedName
	Policy Policy
	// Timeout is how long members that have a node wait for the others.
	Timeout time.Duration
	// GroupSize is the size of a slice in GPUs.
	GroupSize int
	// Required and Preferred are kinds of group, such as leaf.
	Required, Preferred string
	// WithoutMap is empty if the scheduler's configuration decides.
	WithoutMap WithoutMap
	// Ignored are the keys that have no effect, with the reason, in words.
	Ignored []string
}

// Alone is true of a gang that is not in a group of gangs.
func (s *Spec) Alone() bool { return len(s.Groups) <= 1 }
