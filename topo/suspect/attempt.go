package suspect

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// attempt is a run of a gang that failed.
type attempt struct {
	Evidence
	nodes []string
	// own reports that the nodes had faults of their own, moved that the gang ran well at another time, wide that it
	// uses several nodes at once.
	own, moved, wide bool
}

// court has the failures that count, in the order of time, and when a gang last began to run well on each node.
type court struct {
	attempts []attempt
	good     map[proof]time.Time
}

// proof is a node that works, wide if also for gangs of several nodes.
type proof struct {
	node string
	wide bool
}

// cleared reports whether a gang began to run well on a node after a failure.
func (c *court) cleared(a *attempt, node string) bool {
	return c.good[proof{node, a.wide}].After(a.Time)
}

func (m *Memory) collect(now time.Time) *court {
	c := &court{good: map[proof]time.Time{}}
	for gang := range m.gangs {
		failures := failuresOf(m.gangs[gang])
		if extra := len(failures) - maxFailures; extra > 0 {
			failures = failures[extra:]
			first := failures[0].End
			m.drop(gang, func(p *Pod) bool { return p.endedBefore(first) && p.End.Sub(p.Start) < provenAfter })
		}
		c.hear(m, m.gangs[gang], failures, now)
	}
	slices.SortFunc(c.attempts, func(a, b attempt) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Gang, b.Gang))
	})
	return c
}

// hear notes on which nodes a gang ran well, and its failed runs that count: a gang that has run well nowhere, and
// failed in two places without a common node, fails by its code.
func (c *court) hear(m *Memory, pods []*Pod, failures []Pod, now time.Time) {
	wide, moved := isWide(pods), false
	for _, p := range pods {
		if !p.ranWell(failures, now) {
			continue
		}
		moved = true
		for _, as := range []proof{{p.Node, false}, {p.Node, wide}} {
			if p.Start.After(c.good[as]) {
				c.good[as] = p.Start
			}
		}
	}
	var runs []attempt
	for i := range failures {
		if a := m.attempt(pods, &failures[i]); a != nil {
			a.moved, a.wide = moved, wide
			runs = append(runs, *a)
		}
	}
	if !moved && failsEverywhere(runs) {
		runs = slices.DeleteFunc(runs, func(a attempt) bool { return !a.own })
	}
	c.attempts = append(c.attempts, runs...)
}

// failuresOf returns the pod that failed first in each run of a gang, in the order of time.
func failuresOf(pods []*Pod) (out []Pod) {
	for _, p := range pods {
		if p.Failure != "" {
			out = append(out, *p)
		}
	}
	slices.SortFunc(out, func(a, b Pod) int { return cmp.Or(a.End.Compare(b.End), cmp.Compare(a.UID, b.UID)) })
	var last Pod
	return slices.DeleteFunc(out, func(p Pod) bool {
		if last.UID != "" && !p.Start.After(last.End) && p.End.Sub(last.End) <= settle {
			return true
		}
		last = p
		return false
	})
}

// isWide reports whether a gang uses several nodes at once.
func isWide(pods []*Pod) bool {
	for i, p := range pods {
		beside := func(q *Pod) bool {
			return q.Node != p.Node && !q.endedBefore(p.Start) && !p.endedBefore(q.Start)
		}
		if slices.ContainsFunc(pods[i+1:], beside) {
			return true
		}
	}
	return false
}

func (p *Pod) endedBefore(at time.Time) bool { return !p.End.IsZero() && p.End.Before(at) }

// ranWell reports whether a pod ran for an hour before a failure of its gang: what is left of a gang then may wait.
func (p *Pod) ranWell(failures []Pod, now time.Time) bool {
	if !p.End.IsZero() {
		now = p.End
	}
	for i := range failures {
		if at := failures[i].End; at.After(p.Start) && at.Before(now) {
			now = at
		}
	}
	return now.Sub(p.Start) >= provenAfter
}

// attempt returns the failed run of a gang whose first failure is a pod's; nil if it says nothing about a node, since
// the gang had run well.
func (m *Memory) attempt(pods []*Pod, first *Pod) *attempt {
	a := &attempt{Evidence: Evidence{Gang: first.Gang, Time: wellknown.Moment(first.End), Reason: first.Failure}}
	whole, nodes := first.Start, map[string]bool{}
	for _, p := range pods {
		if p.Start.After(first.End) || p.endedBefore(first.End) {
			continue
		}
		if p.Start.After(whole) {
			whole = p.Start
		}
		nodes[p.Node] = true
	}
	a.nodes = slices.Sorted(maps.Keys(nodes))
	var ill []string
	for _, node := range a.nodes {
		near := func(f Fault) bool { return f.Since.Sub(first.End).Abs() <= faultNear }
		if i := slices.IndexFunc(m.faults[node], near); i >= 0 {
			ill, a.Reason = append(ill, node), m.faults[node][i].Reason
		}
	}
	switch {
	case len(ill) > 0:
		a.nodes, a.own = ill, true
	case first.End.Sub(whole) >= provenAfter:
		return nil
	}
	a.Of = len(a.nodes)
	return a
}

// failsEverywhere reports whether no node is in all failed runs.
func failsEverywhere(runs []attempt) bool {
	runs = slices.DeleteFunc(slices.Clone(runs), func(a attempt) bool { return a.own })
	inAll := func(node string) bool {
		return !slices.ContainsFunc(runs, func(a attempt) bool { return !slices.Contains(a.nodes, node) })
	}
	return len(runs) > 0 && !slices.ContainsFunc(runs[0].nodes, inAll)
}
