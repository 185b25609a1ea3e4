package gang

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Phase is the state of a gang in one word.
type Phase string

// The phases.
const (
	// Queued gangs wait for members or for nodes.
	Queued Phase = "Queued"
	// Starting gangs have nodes; too few members run yet.
	Starting Phase = "Starting"
	Running  Phase = "Running"
	// Unknown gangs need the user's attention: a member failed, is being
	// deleted, cannot pull its image, crashes again and again, or its node is
	// lost.
	Unknown   Phase = "Unknown"
	Succeeded Phase = "Succeeded"
)

// Phases returns all phases in the order of a gang's life.
func Phases() []Phase { return []Phase{Queued, Starting, Running, Unknown, Succeeded} }

// State is the state of a gang for users.
type State struct {
	Phase Phase
	// Reason explains what is missing or wrong, for Queued in the scheduler's words if available;
	// empty for Running and Succeeded.
	Reason string
	// Since is when the phase began, RejectedSince since when the scheduler
	// rejects the members of a Queued gang. Both are whole seconds, zero if
	// unknown.
	Since, RejectedSince time.Time
	// Pods are all that exist; Bound have a node and are not finished.
	Pods, Bound, Running, Succeeded, Failed int
}

// StateOf returns the state of a gang. With minMember 0, which means unknown, all members are
// needed. lost reports whether a node is not ready, and since when, zero if unknown.
func StateOf(members []*Member, minMember int, lost func(node string) (time.Time, bool)) State {
	c := count(members, lost)
	s := c.State
	need := cmp.Or(minMember, max(1, s.Pods))
	switch {
	case len(c.problems) > 0:
		s.Phase, s.Reason, s.Since = Unknown, worst(c.problems), nth(c.problem, 1)
	case s.Pods > 0 && s.Succeeded == s.Pods:
		s.Phase, s.Since = Succeeded, nth(c.since[succeeded], s.Pods)
	case s.Running+s.Succeeded >= need && s.Running > 0:
		// It runs since enough members run.
		s.Phase, s.Since = Running, nth(c.since[running], need-s.Succeeded)
	case s.Bound+s.Succeeded >= need:
		s.Phase, s.Reason, s.Since = Starting, fmt.Sprintf("%d of %d run", s.Running, need), nth(c.since[bound], s.Pods)
	default:
		s.Phase, s.Since, s.RejectedSince = Queued, nth(c.since[waiting], 1), nth(c.rejected, 1)
		switch {
		case s.Pods < need:
			s.Reason = Incomplete(s.Pods, need)
		case len(c.rejections) > 0:
			s.Reason = most(c.rejections)
		default:
			s.Reason = fmt.Sprintf("%d of %d have a node", s.Bound+s.Succeeded, need)
		}
	}
	return s
}

// Incomplete is the reason of a gang with fewer pods than it needs.
func Incomplete(pods, need int) string {
	return fmt.Sprintf("%d of %d pods exist; the gang waits until their controller has created the others", pods, need)
}

// tally sums up members.
type tally struct {
	State
	since                [failed + 1][]time.Time
	problem, rejected    []time.Time
	problems, rejections map[string]int
}

func count(members []*Member, lost func(string) (time.Time, bool)) tally {
	c := tally{problems: map[string]int{}, rejections: map[string]int{}}
	for _, m := range members {
		what, since := m.problem, m.since
		if what == "" && (m.stage == bound || m.stage == running) {
			if at, ok := lost(m.Node); ok {
				what, since = lostNode, at
			}
		}
		if what != "" {
			c.problems[what]++
			c.problem = append(c.problem, since)
		}
		c.since[m.stage] = append(c.since[m.stage], m.since)
		if m.stage == running && m.problem != terminating {
			c.Running++
		}
		c.rejected = append(c.rejected, m.rejected)
		if m.rejection != "" {
			c.rejections[m.rejection]++
		}
	}
	c.Pods, c.Bound = len(members), len(c.since[bound])+len(c.since[running])
	c.Succeeded, c.Failed = len(c.since[succeeded]), len(c.since[failed])
	return c
}

// nth returns the n-th of the known times, counted from 1, or the last one.
func nth(at []time.Time, n int) time.Time {
	if at = slices.DeleteFunc(at, time.Time.IsZero); len(at) == 0 {
		return time.Time{}
	}
	slices.SortFunc(at, time.Time.Compare)
	return at[min(max(n, 1), len(at))-1].UTC()
}

// worst describes the most frequent problem.
func worst(problems map[string]int) string {
	what := most(problems)
	if n := problems[what]; n > 1 {
		return fmt.Sprintf("%d pods %s", n, what)
	}
	return "1 pod " + what
}

// most returns the most frequent text, the first of several.
func most(texts map[string]int) string {
	return slices.MinFunc(slices.Collect(maps.Keys(texts)), func(a, b string) int {
		return cmp.Or(cmp.Compare(texts[b], texts[a]), cmp.Compare(a, b))
	})
}
