package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// maxDomains bounds the values of a label that are tried for one gang.
const maxDomains = 8

// search finds the place of a gang: with a label, on nodes with one value of it.
type search struct {
	*tree
	nodes []*fit.Node
	gang  *placement.Gang
	label string
	// values are the label's values, by node of the tree; empty without a label.
	values []string
}

func (t *tree) search(g *Gang, nodes []*fit.Node, request *placement.Gang) *search {
	s := &search{tree: t, nodes: nodes, gang: request, label: g.label()}
	if s.label == "" {
		return s
	}
	s.values = make([]string, t.placement.Len())
	for at, id := range t.ids {
		s.values[id] = nodes[at].Labels[s.label]
	}
	return s
}

// place finds the tightest place.
func (s *search) place(room *placement.Capacity) (placement.Plan, error) {
	if s.label == "" {
		return placement.Place(s.placement, s.gang, room)
	}
	var members []int32
	for _, m := range s.gang.Placed {
		members = append(members, m.Node)
	}
	held, err := s.domainsOf(members)
	switch {
	case err != nil:
		return placement.Plan{}, err
	case len(held) > 1:
		return placement.Plan{}, fmt.Errorf("its members are in %s of %s already", strings.Join(held, ", "), s.label)
	case len(held) == 1:
		return s.on(room, func(value string) bool { return value == held[0] })
	}
	// In most clusters the tightest place is in one domain of the label.
	plan, err := s.on(room, func(value string) bool { return value != "" })
	if err != nil {
		return plan, err
	}
	if domains, err := s.domainsOf(plan.Nodes); err == nil && len(domains) == 1 {
		return plan, nil
	}
	var first error
	for _, domain := range s.candidates(room) {
		plan, err := s.on(room, func(value string) bool { return value == domain })
		if err == nil {
			return plan, nil
		}
		first = cmp.Or(first, fmt.Errorf("%s %s: %w", s.label, domain, err))
	}
	return placement.Plan{}, first
}

// on finds the tightest place on nodes with some values of the label.
func (s *search) on(room *placement.Capacity, some func(value string) bool) (placement.Plan, error) {
	return placement.Place(s.placement, s.gang, only(room, func(id int) bool { return some(s.values[id]) }))
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
	if domains, err := s.domainsOf(plan); err == nil && len(domains) == 1 {
		return only(room, func(id int) bool { return s.values[id] == domains[0] })
	}
	return room
}

// domainsOf returns the values of the label on nodes of the tree, sorted.
func (s *search) domainsOf(nodes []int32) (domains []string, err error) {
	for _, id := range nodes {
		switch {
		case id == placement.None:
		case s.values[id] == "":
			return nil, fmt.Errorf("a member is on node %s, which has no label %s", s.placement.Name(id), s.label)
		default:
			domains = append(domains, s.values[id])
		}
	}
	slices.Sort(domains)
	return slices.Compact(domains), nil
}

// candidates returns the values of the label to try: those with room for all pods of the gang
// first, the fullest before the others, then the rest, the emptiest first.
func (s *search) candidates(capacity *placement.Capacity) []string {
	pods := 0
	for _, t := range s.gang.Tasks {
		pods += t.Pods
	}
	room := map[string]int{}
	for id, value := range s.values {
		if value == "" || slices.Contains(s.gang.Avoid, int32(id)) {
			continue
		}
		// The fewest of all classes is right for any mixture of them.
		fewest := capacity.Fit[0][id]
		for _, fit := range capacity.Fit[1:] {
			fewest = min(fewest, fit[id])
		}
		room[value] += int(fewest)
	}
	values := slices.SortedFunc(maps.Keys(room), func(a, b string) int {
		if room[a] >= pods && room[b] >= pods {
			return cmp.Or(cmp.Compare(room[a], room[b]), cmp.Compare(a, b))
		}
		return cmp.Or(cmp.Compare(room[b], room[a]), cmp.Compare(a, b))
	})
	return values[:min(len(values), maxDomains)]
}
