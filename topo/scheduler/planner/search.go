package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/heddle-dev/heddle/topo/placement"
)

const (
	// maxDomains bounds the values of a label that are tried for one gang.
	maxDomains = 8
	// maxPreferences bounds how many places are tried for preferences.
	maxPreferences = 8
)

// search finds the place of a gang: with a label, on nodes with one value of it.
type search struct {
	*tree
	table *Table
	gang  *placement.Gang
	label string
	// values are the label's values, by node of the tree; empty without a label.
	values []string
}

func (p *Planner) search(t *tree, g *Gang, request *placement.Gang) *search {
	s := &search{tree: t, table: &p.table, gang: request, label: g.label()}
	if s.label != "" {
		s.values = make([]string, t.placement.Len())
		p.table.values(s.label, t.ids, s.values)
	}
	return s
}

// place finds the tightest place. With a label it tries a few of the values, until the gang is in
// one lowest group.
func (s *search) place(room *placement.Capacity) (best placement.Plan, err error) {
	if s.label == "" {
		return placement.Place(s.placement, s.gang, room)
	}
	domains, err := s.domains(room)
	if err != nil {
		return best, err
	}
	for _, domain := range domains {
		if best.Nodes != nil && best.Group.Tier <= 1 {
			break
		}
		in := only(room, func(id int) bool { return s.values[id] == domain })
		switch plan, failed := placement.Place(s.placement, s.gang, in); {
		case failed != nil:
			err = cmp.Or(err, fmt.Errorf("%s %s: %w", s.label, domain, failed))
		case best.Nodes == nil || plan.Group.Tier < best.Group.Tier:
			best = plan
		}
	}
	switch {
	case best.Nodes != nil:
		return best, nil
	case err == nil:
		err = fmt.Errorf("no node has the label %s", s.label)
	}
	return best, err
}

// only returns the room on some nodes of the tree.
func only(room *placement.Capacity, some func(id int) bool) *placement.Capacity {
	out := *room
	out.Fit = make([][]int32, len(room.Fit))
	for class, fit := range room.Fit {
		out.Fit[class] = make([]int32, len(fit))
		for id, n := range fit {
			if n > 0 && some(id) {
				out.Fit[class][id] = n
			}
		}
	}
	return &out
}

// alike returns the room on nodes with the label's value of a plan's nodes.
func (s *search) alike(room *placement.Capacity, plan []int32) *placement.Capacity {
	first := slices.IndexFunc(plan, func(id int32) bool { return id != placement.None })
	if s.label == "" || first < 0 {
		return room
	}
	return only(room, func(id int) bool { return s.values[id] == s.values[plan[first]] })
}

// domains returns the values of the label to try: the members' or, without members, those with room
// for all pods of the gang, the fullest first, and then the rest, the emptiest first.
func (s *search) domains(capacity *placement.Capacity) (domains []string, err error) {
	for _, m := range s.gang.Placed {
		switch {
		case m.Node == placement.None:
		case s.values[m.Node] == "":
			return nil, fmt.Errorf("a member is on node %s, which has no label %s", s.placement.Name(m.Node), s.label)
		default:
			domains = append(domains, s.values[m.Node])
		}
	}
	slices.Sort(domains)
	if domains = slices.Compact(domains); len(domains) > 1 {
		return nil, fmt.Errorf("its members are in %s of %s already", strings.Join(domains, ", "), s.label)
	} else if len(domains) == 1 {
		return domains, nil
	}
	pods, room, avoided := 0, map[string]int{}, make([]bool, len(s.values))
	for _, t := range s.gang.Tasks {
		pods += t.Pods
	}
	for _, id := range s.gang.Avoid {
		avoided[id] = true
	}
	last, sum := "", 0 // Neighbors in the tree have the same value: most nodes need no lookup.
	for id, value := range s.values {
		if value == "" || avoided[id] {
			continue
		}
		if value != last {
			room[last] += sum
			last, sum = value, 0
		}
		// The fewest of all classes is right for any mixture of them.
		fewest := capacity.Fit[0][id]
		for _, fit := range capacity.Fit[1:] {
			fewest = min(fewest, fit[id])
		}
		sum += int(fewest)
	}
	room[last] += sum
	delete(room, "")
	domains = slices.SortedFunc(maps.Keys(room), func(a, b string) int {
		if room[a] >= pods && room[b] >= pods {
			return cmp.Or(cmp.Compare(room[a], room[b]), cmp.Compare(a, b))
		}
		return cmp.Or(cmp.Compare(room[b], room[a]), cmp.Compare(a, b))
	})
	return domains[:min(len(domains), maxDomains)], nil
}

// prefer returns a place on nodes that the members prefer more, if one exists as tight as the found
// place: in a group of the same tier, and in as few of the lowest groups.
func (s *search) prefer(g *Gang, room *placement.Capacity, found placement.Plan) placement.Plan {
	scores := s.preferences(g)
	if len(scores) == 0 || slices.Min(scores) == slices.Max(scores) {
		return found
	}
	levels := slices.Compact(slices.Sorted(slices.Values(scores)))
	slices.Reverse(levels)
	// The last level includes all nodes: that place was found already.
	for _, least := range levels[:min(len(levels)-1, maxPreferences)] {
		plan, err := s.place(only(room, func(id int) bool { return scores[id] >= least }))
		if err == nil && plan.Group.Tier <= found.Group.Tier && s.lowest(plan.Nodes) <= s.lowest(found.Nodes) {
			return plan
		}
	}
	return found
}

// preferences scores each node of the tree by the first member's preferred node affinity, less
// a hundred for each taint PreferNoSchedule that it does not tolerate.
func (s *search) preferences(g *Gang) []int64 {
	const dislike = 100 // The largest weight of a term.
	pod := g.Members[0].Pod
	var terms *nodeaffinity.PreferredSchedulingTerms
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		// The API server rejects what cannot be parsed.
		terms, _ = nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if terms == nil && s.table.soft == 0 {
		return nil
	}
	scores := make([]int64, s.placement.Len())
	for at, id := range s.ids {
		node := s.table.nodes[at].Node
		if terms != nil {
			scores[id] = terms.Score(node)
		}
		for i := range node.Spec.Taints {
			if taint := &node.Spec.Taints[i]; taint.Effect == corev1.TaintEffectPreferNoSchedule &&
				!schedulehelpers.TolerationsTolerateTaint(logr.Discard(), pod.Spec.Tolerations, taint, false) {
				scores[id] -= dislike
			}
		}
	}
	return scores
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
