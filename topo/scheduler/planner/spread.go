package planner

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/heddle-dev/heddle/topo/placement"
)

// spread places a gang if the tightest place breaks its limits. Members go one after another,
// as the scheduler's filters will see them, each to an allowed node in the lowest group that
// has members, else in the group with the most room. This is near, but not always the nearest.
func (l *limits) spread(
	t *tree, g *Gang, request *placement.Gang, room *placement.Capacity,
) (plan placement.Plan, err error) {
	if request.Slice > 0 {
		return plan, fmt.Errorf("its members must be apart by %s, and blocks of %d GPUs together", l.keys(), request.Slice)
	}
	err = fmt.Errorf("there is no %s", request.Require)
	for _, within := range t.within(request) {
		s := spreading{
			limits: l, tree: t, gang: g, room: room, within: within,
			taken: map[int32][]int32{}, inside: map[span]int{}, roomy: map[span]int{},
		}
		if plan, err = s.place(request); err == nil {
			break
		}
	}
	return plan, err
}

// within returns the groups to try, those with members first: of the required kind, or of the
// preferred kind followed by the whole cluster.
func (t *tree) within(request *placement.Gang) (groups []placement.Group) {
	all := placement.Group{End: int32(t.placement.Len())} //nolint:gosec // The tree's bound.
	members := map[placement.Group]int{}
	kind := cmp.Or(request.Require, request.Prefer)
	for id := int32(0); kind != "" && id < all.End; id++ {
		for _, group := range t.placement.Around(id) {
			if group.Kind != kind {
				continue
			}
			if id == group.First {
				groups = append(groups, group)
			}
			if slices.ContainsFunc(request.Placed, func(m placement.Member) bool { return m.Node == id }) {
				members[group]++
			}
		}
	}
	slices.SortStableFunc(groups, func(a, b placement.Group) int { return cmp.Compare(members[b], members[a]) })
	if request.Require == "" {
		groups = append(groups, all)
	}
	return groups
}

// spreading places the members of one gang within a group.
type spreading struct {
	*limits
	tree   *tree
	gang   *Gang
	room   *placement.Capacity
	within placement.Group
	// taken are the members on each node, by class.
	taken map[int32][]int32
	// groups are the groups of each node within, from the node itself up. By group, inside is how
	// many members it has, and roomy how many it takes.
	groups        [][]span
	inside, roomy map[span]int
}

// span is a group by its first node and its end.
type span [2]int32

func (t *tree) spans(id int32) (out []span) {
	for _, group := range t.placement.Around(id) {
		out = append(out, span{group.First, group.End})
	}
	return out
}

func (s *spreading) place(request *placement.Gang) (placement.Plan, error) {
	s.reset()
	out := placement.Plan{Nodes: make([]int32, len(s.gang.Members))}
	for _, m := range request.Placed {
		out.Nodes[m.Rank] = m.Node
		s.enter(m.Node)
	}
	for id := s.within.First; id < s.within.End; id++ {
		groups := s.tree.spans(id)
		s.groups = append(s.groups, groups)
		for _, group := range groups {
			for _, fit := range s.room.Fit {
				s.roomy[group] += int(fit[id])
			}
		}
	}
	var classes []int // by rank
	for _, task := range request.Tasks {
		classes = append(classes, slices.Repeat([]int{task.Class}, task.Pods)...)
	}
	for _, i := range s.order {
		if s.gang.Members[i].Node != "" {
			out.Pods++
			continue
		}
		id := s.best(i, classes[i], request.Avoid)
		if out.Nodes[i] = id; id == placement.None {
			continue
		}
		out.Pods++
		s.taken[id] = s.with(id, classes[i])
		s.enter(id)
		s.add(i, int(s.tree.at[id]))
	}
	if out.Pods < s.gang.MinMember {
		return out, fmt.Errorf("%d of %d fit where their constraints on %s let them", out.Pods, s.gang.MinMember, s.keys())
	}
	out.Group = append(s.tree.placement.Around(out.Nodes...), placement.Group{})[0]
	return out, nil
}

// best returns the node for a member; None if no node takes it.
func (s *spreading) best(member, class int, avoid []int32) int32 {
	best, found := [3]int{}, placement.None
	for id := s.within.First; id < s.within.End; id++ {
		at := int(s.tree.at[id])
		if at < 0 || s.room.Fit[class][id] == 0 || slices.Contains(avoid, id) || !s.fits(id, class) || !s.allow(member, at) {
			continue
		}
		score := [3]int{2: int(s.room.Free[id])}
		for i, group := range s.groups[id-s.within.First] {
			if s.inside[group] > 0 {
				score[0]--
			}
			if i == 1 {
				score[1] = -s.roomy[group]
			}
		}
		if found == placement.None || slices.Compare(score[:], best[:]) < 0 {
			best, found = score, id
		}
	}
	return found
}

// fits reports whether a node takes one more member of a class.
func (s *spreading) fits(id int32, class int) bool {
	taken := s.with(id, class)
	for c, n := range taken {
		if n > s.room.Fit[c][id] {
			return false
		}
	}
	return len(taken) == 1 || s.room.Together(id, taken)
}

// with returns the members on a node, by class, and one more.
func (s *spreading) with(id int32, class int) []int32 {
	taken := make([]int32, len(s.room.Fit))
	copy(taken, s.taken[id])
	taken[class]++
	return taken
}

// enter notes the groups of a member's node.
func (s *spreading) enter(id int32) {
	if id == placement.None {
		return
	}
	for _, group := range s.tree.spans(id) {
		s.inside[group]++
	}
}
