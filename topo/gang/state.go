package gang

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Phase is the state of a gang in one word for people.
type Phase string

// The phases.
const (
	// Queued gangs wait for members or for nodes.
	Queued Phase = "Queued"
	// Starting gangs have nodes; too few members run yet.
	Starting Phase = "Starting"
	Running  Phase = "Running"
	// Unknown gangs need somebody: a member failed, is being deleted, cannot
	// pull its image, crashes again and again, or its node is lost.
	Unknown   Phase = "Unknown"
	Succeeded Phase = "Succeeded"
)

// Phases are all of them, in the order of a gang's life.
func Phases() []Phase { return []Phase{Queued, Starting, Running, Unknown, Succeeded} }

// State is what people are told about a gang.
type State struct {
	Phase Phase
	// Reason says what is missing or wrong, for Queued in the scheduler's
	// words if it has said any; empty for Running and Succeeded.
	Reason string
	// Since is when the phase began, RejectedSince since when the scheduler
	// refuses the members of a Queued gang. Both are whole seconds, zero if
	// nobody knows.
	Since, RejectedSince time.Time
	// Pods are all that exist; Bound have a node and are not finished.
	Pods, Bound, Running, Succeeded, Failed int
}

// StateOf tells the state of a gang from its pods. minMember 0 is unknown: then
// all pods are needed. lost says of a node whether it is not ready; nil is never.
func StateOf(pods []*corev1.Pod, minMember int, lost func(node string) bool) State {
	members := make([]*Member, len(pods))
	for i, pod := range pods {
		members[i] = memberOf(pod)
	}
	var since func(string) (time.Time, bool)
	if lost != nil {
		since = func(node string) (time.Time, bool) { return time.Time{}, lost(node) }
	}
	return StateOfMembers(members, minMember, since)
}

// StateOfMembers is StateOf by compact facts. lost also says since when a node is
// not ready, zero if that is unknown.
func StateOfMembers(members []*Member, minMember int, lost func(node string) (time.Time, bool)) State {
	c := count(members, lost)
	s := c.State
	s.Pods = len(members)
	need := minMember
	if need == 0 {
		need = max(1, s.Pods)
	}
	switch {
	case len(c.trouble) > 0:
		s.Phase, s.Reason, s.Since = Unknown, worst(c.trouble), first(c.troubled)
	case s.Pods > 0 && s.Succeeded == s.Pods:
		s.Phase, s.Since = Succeeded, nth(c.ended, s.Pods)
	case s.Running+s.Succeeded >= need && s.Running > 0:
		// It runs since the last of those that it needs does.
		s.Phase, s.Since = Running, nth(c.started, need-s.Succeeded)
	case s.Bound+s.Succeeded >= need:
		s.Phase, s.Reason, s.Since = Starting, fmt.Sprintf("%d of %d run", s.Running, need), nth(c.bound, len(c.bound))
	default:
		s.Phase, s.Since, s.RejectedSince = Queued, first(c.made), first(c.rejected)
		s.Reason = queued(&s, need, c.refusals)
	}
	return s
}

// queued is why a gang has not its nodes yet.
func queued(s *State, need int, refusals map[string]int) string {
	switch {
	case s.Pods < need:
		return fmt.Sprintf("%d of %d pods exist", s.Pods, need)
	case len(refusals) > 0:
		return most(refusals)
	}
	return fmt.Sprintf("%d of %d have a node", s.Bound+s.Succeeded, need)
}

// tally is what members add up to. None of the times is 0.
type tally struct {
	State
	trouble                                         map[trouble]int
	refusals                                        map[string]int
	troubled, ended, started, bound, made, rejected []second
}

func count(members []*Member, lost func(string) (time.Time, bool)) tally {
	c := tally{trouble: map[trouble]int{}, refusals: map[string]int{}}
	for _, m := range members {
		c.add(m)
		what, since := m.trouble, m.since
		if what == none && lost != nil && (m.stage == bound || m.stage == running) {
			if at, ok := lost(m.Node); ok {
				what, since = lostNode, seconds(metav1.Time{Time: at})
			}
		}
		if what != none {
			c.trouble[what]++
			note(&c.troubled, since)
		}
	}
	return c
}

// add counts a member by its stage.
func (c *tally) add(m *Member) {
	switch m.stage {
	case succeeded:
		c.Succeeded++
		note(&c.ended, m.since)
	case failed:
		c.Failed++
	case running:
		c.Bound++
		if m.trouble != terminating {
			c.Running++
			note(&c.started, m.since)
		}
	case bound:
		c.Bound++
		note(&c.bound, m.since)
	case waiting:
		note(&c.made, m.since)
		note(&c.rejected, m.rejected)
		if m.refusal != "" {
			c.refusals[m.refusal]++
		}
	}
}

func note(to *[]second, at second) {
	if at != 0 {
		*to = append(*to, at)
	}
}

// first is the earliest of some times.
func first(at []second) time.Time { return nth(at, 1) }

// nth is the n-th of some times, counted from 1, or the next that there is.
func nth(at []second, n int) time.Time {
	if len(at) == 0 {
		return time.Time{}
	}
	slices.Sort(at)
	return time.Unix(int64(at[min(max(n, 1), len(at))-1]), 0).UTC()
}

// worst is the most frequent trouble.
func worst(troubles map[trouble]int) string {
	words := make(map[string]int, len(troubles))
	for what, n := range troubles {
		words[what.String()] = n
	}
	word := most(words)
	if n := words[word]; n > 1 {
		return fmt.Sprintf("%d pods %s", n, word)
	}
	return "1 pod " + word
}

// most is the most frequent text, the first of those that are as frequent.
func most(texts map[string]int) string {
	best := ""
	for text, n := range texts {
		if best == "" || n > texts[best] || n == texts[best] && text < best {
			best = text
		}
	}
	return best
}
