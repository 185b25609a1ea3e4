package planner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/placement"
)

// maxDomains bounds the values of a label that are tried for one gang.
const maxDomains = 8

// search looks for the place of a gang of which all nodes have one value of a label.
type search struct {
	tree     *placement.Tree
	gang     *placement.Gang
	capacity *placement.Capacity
	label    string
	// values are those of the label, by node of the tree; empty without one.
	values []string
}

// place finds the tightest place.
func (s *search) place() (placement.Plan, error) {
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
		return s.on(func(value string) bool { return value == held[0] })
	}
	// In most clusters the tightest place of the tree is in one domain of the label.
	plan, err := s.on(func(value string) bool { return value != "" })
	if err != nil {
		return plan, err
	}
	if domains, err := s.domainsOf(plan.Nodes); err == nil && len(domains) == 1 {
		return plan, nil
	}
	var first error
	for _, domain := range s.candidates() {
		plan, err := s.on(func(value string) bool { return value == domain })
		if err == nil {
			return plan, nil
		}
		if first == nil {
			first = fmt.Errorf("%s %s: %w", s.label, domain, err)
		}
	}
	return placement.Plan{}, first
}

// on finds the tightest place on nodes with some values of the label.
func (s *search) on(some func(value string) bool) (placement.Plan, error) {
	return placement.Place(s.tree, s.gang, only(s.capacity, func(id int) bool { return some(s.values[id]) }))
}

// only is the room on some nodes of the tree.
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

// alike is the room on nodes that have the value of a label that a plan's nodes have.
func (t *tree) alike(
	nodes []framework.NodeInfo, room *placement.Capacity, label string, plan []int32,
) *placement.Capacity {
	s := search{tree: t.placement, capacity: room, label: label, values: t.values(nodes, label)}
	if domains, err := s.domainsOf(plan); err == nil && len(domains) == 1 {
		return only(room, func(id int) bool { return s.values[id] == domains[0] })
	}
	return room
}

// domainsOf are the values of the label on nodes of the tree, sorted.
func (s *search) domainsOf(nodes []int32) (domains []string, err error) {
	for _, id := range nodes {
		switch {
		case id == placement.None:
		case s.values[id] == "":
			return nil, fmt.Errorf("a member is on node %s, which has no label %s", s.tree.Name(id), s.label)
		default:
			domains = append(domains, s.values[id])
		}
	}
	slices.Sort(domains)
	return slices.Compact(domains), nil
}

// candidates are the values of the label to try: best fit first, that is the ones with
// room for all pods of the gang, the fullest first, then the emptiest of the others.
func (s *search) candidates() []string {
	pods := 0
	for _, t := range s.gang.Tasks {
		pods += t.Pods
	}
	room := map[string]int{}
	for id, value := range s.values {
		if value == "" || slices.Contains(s.gang.Avoid, int32(id)) {
			continue
		}
		// Of several classes the fewest, which holds for any mixture of them.
		fewest := s.capacity.Fit[0][id]
		for _, fit := range s.capacity.Fit[1:] {
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
