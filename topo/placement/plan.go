package placement

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// plan gives the ranks of the last attempt, at n pending pods, their nodes.
//
// Free ranks go through the nodes in tree order, from one past the lowest group
// with the shorter block and around to it, so that every group gets consecutive
// ranks, and whole blocks before the shorter one.
func (s *search) plan(n int) Plan {
	out := Plan{Nodes: make([]int32, len(s.demand.at)), Pods: s.demand.placed() + n}
	for rank, node := range s.demand.at {
		out.Nodes[rank] = max(node, None)
	}
	for _, m := range slices.Concat(s.fixed, s.assigned) {
		out.Nodes[m.Rank] = m.Node
	}
	ranks := s.ranks
	for _, span := range [2][2]int32{{s.tail, s.tree.nodes()}, {0, s.tail}} {
		for node := span[0]; node < span[1] && len(ranks) > 0; node++ {
			for range min(int(s.take[node]), len(ranks)) {
				out.Nodes[ranks[0]] = node
				ranks = ranks[1:]
			}
		}
	}
	out.Group = s.tree.groupOf(out.Nodes)
	return out
}

// groupOf returns the tightest group that holds all of some nodes; the root for none.
func (t *Tree) groupOf(nodes []int32) Group {
	switch first, last := bounds(nodes); {
	case last == None:
		return t.groups[0].Group
	case first == last:
		return Group{Name: t.names[first], Kind: kindNode, First: first, End: last + 1}
	case last >= t.grouped:
		return Group{Tier: t.groups[0].Tier + 1, End: t.nodes()}
	default:
		return t.groups[t.common(first, last)].Group
	}
}

// reject explains how much of what must be placed would fit, and where: 3 of 5
// fit, group leaf-07 is 4 GPUs short.
func (s *search) reject(least int) error {
	d := &s.demand
	n := max(0, s.most(0, least))
	s.attempt(n)
	plan := s.plan(n)
	text := fmt.Sprintf("%d of %d fit", plan.Pods, d.placed()+least)
	if plan.Pods == 0 {
		text = fmt.Sprintf("none of %d fits", least)
	}
	if d.gang.Slice > 0 {
		text += " in slices of " + count(d.gang.Slice, "GPU")
	}
	if placed := d.placed(); placed > 0 {
		text += fmt.Sprintf(" (%d placed already)", placed)
	}
	task := &d.gang.Tasks[d.task[d.pending[n]]]
	noRoom, outside := s.nodesWithRoom(task)
	if noRoom {
		in := ""
		if s.tree.bit(d.gang.Require) != 0 {
			in = " in a " + d.gang.Require
		}
		text += fmt.Sprintf(", no node%s has room for a %s", in, cmp.Or(task.Name, "pod"))
	} else if plan.Pods > 0 {
		text += fmt.Sprintf(", %s %s short", s.closest(&plan), d.missing(d.pending[n:least]))
	}
	if outside > 0 {
		is := "are"
		if outside == 1 {
			is = "is"
		}
		text += fmt.Sprintf("; %s with room %s in no %s", count(outside, "node"), is, d.gang.Require)
	}
	if avoided := len(d.gang.Avoid); avoided > 0 {
		text += fmt.Sprintf("; %s avoided", count(avoided, "node"))
	}
	return errors.New(text)
}

// closest names where the plan of the most pods is.
func (s *search) closest(plan *Plan) string {
	for _, g := range s.tree.Around(plan.Nodes...) {
		switch {
		case g.Kind != s.demand.gang.Require:
		case g.Kind == kindNode:
			return "node " + g.Name + " is"
		default:
			return "group " + g.Name + " is"
		}
	}
	return "all nodes together are"
}

// missing returns how many GPUs pending pods ask for; how many they are, if these ask
// for none.
func (d *demand) missing(pending []int32) string {
	gpus := 0
	for _, rank := range pending {
		gpus += d.gang.Tasks[d.task[rank]].GPUs
	}
	if gpus > 0 {
		return count(gpus, "GPU")
	}
	return count(len(pending), "pod")
}

// nodesWithRoom is whether no node has room for one pod more of a task, and how
// many nodes with room for primary ones are in no group of the required kind.
func (s *search) nodesWithRoom(task *Task) (none bool, outside int) {
	d, t := &s.demand, s.tree
	none, bit := true, t.bit(d.gang.Require)
	for node, home := range t.home {
		switch {
		case slices.Contains(d.gang.Avoid, int32(node)):
		case bit == 0 || t.groups[home].around&bit != 0:
			none = none && d.room.Fit[task.Class][node] <= 0
		case d.room.Fit[d.classes[0]][node] > 0:
			outside++
		}
	}
	return none, outside
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
