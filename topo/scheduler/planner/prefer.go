package planner

import (
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// maxPreferences bounds how many places are tried for preferences.
const maxPreferences = 8

// preferences scores each node of the tree by the first member's preferred node affinity, less
// a hundred for each taint PreferNoSchedule that it does not tolerate; nil if all nodes are equal.
func (t *tree) preferences(g *Gang, nodes []*fit.Node) []int64 {
	const dislike = 100 // The largest weight of a term.
	pod := g.Members[0].Pod
	var terms *nodeaffinity.PreferredSchedulingTerms
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		// The API server rejects what cannot be parsed.
		terms, _ = nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	scores, some := make([]int64, t.placement.Len()), false
	for at, id := range t.ids {
		node := nodes[at].Node
		if terms != nil {
			scores[id] = terms.Score(node)
		}
		for i := range node.Spec.Taints {
			if taint := &node.Spec.Taints[i]; taint.Effect == corev1.TaintEffectPreferNoSchedule &&
				!schedulehelpers.TolerationsTolerateTaint(logr.Discard(), pod.Spec.Tolerations, taint, false) {
				scores[id] -= dislike
			}
		}
		some = some || scores[id] != scores[t.ids[0]]
	}
	if !some {
		return nil
	}
	return scores
}

// prefer returns a place on nodes that the members prefer more, if one exists as tight as the found
// place: in a group of the same tier, and in as few of the lowest groups.
func (s *search) prefer(g *Gang, room *placement.Capacity, found placement.Plan) placement.Plan {
	scores := s.preferences(g, s.nodes)
	if scores == nil {
		return found
	}
	var levels []int64
	for id, score := range scores {
		if slices.ContainsFunc(room.Fit, func(fit []int32) bool { return fit[id] > 0 }) {
			levels = append(levels, score)
		}
	}
	slices.Sort(levels)
	levels = slices.Compact(levels)
	slices.Reverse(levels)
	if len(levels) == 0 {
		return found
	}
	// The last level includes all nodes with room: that place was found already.
	for _, least := range levels[:min(len(levels)-1, maxPreferences)] {
		preferred := only(room, func(id int) bool { return scores[id] >= least })
		plan, err := s.place(preferred)
		if err == nil && plan.Group.Tier <= found.Group.Tier && s.lowest(plan.Nodes) <= s.lowest(found.Nodes) {
			return plan
		}
	}
	return found
}

// lowest counts the lowest groups that some nodes are in.
func (t *tree) lowest(nodes []int32) int {
	groups := map[placement.Group]bool{}
	for _, id := range nodes {
		if id == placement.None {
			continue
		}
		around := t.placement.Around(id)
		groups[around[min(1, len(around)-1)]] = true
	}
	return len(groups)
}
