package plugin

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/placement"
)

// maxDomains bounds the values of a label that are tried for one PodGroup.
const maxDomains = 8

// search looks for a place on a chart.
type search struct {
	chart *chart
	nodes []framework.NodeInfo
	gang  *placement.Gang
	room  *placement.Capacity
}

// confine leaves room on these nodes only.
func (s *search) confine(within []framework.NodeInfo) {
	names := make(map[string]bool, len(within))
	for _, info := range within {
		names[info.Node().Name] = true
	}
	s.bar(func(at int) bool { return !names[s.nodes[at].Node().Name] })
}

// bar takes the room of some of the scheduler's nodes away.
func (s *search) bar(which func(at int) bool) {
	for at, id := range s.chart.ids {
		if !which(at) {
			continue
		}
		for class := range s.room.Fit {
			s.room.Fit[class][id] = 0
		}
	}
}

// place finds the tightest place of all whose nodes have one value of a label;
// of all places if there is no label.
func (s *search) place(label string) (placement.Plan, error) {
	if label == "" {
		return placement.Place(s.chart.tree, s.gang, s.room)
	}
	s.bar(func(at int) bool { return s.nodes[at].Node().Labels[label] == "" })
	held, err := s.values(label, s.members())
	switch {
	case err != nil:
		return placement.Plan{}, err
	case len(held) > 1:
		return placement.Plan{}, fmt.Errorf("its members are in %s of %s already", strings.Join(held, ", "), label)
	case len(held) == 1:
		s.bar(func(at int) bool { return s.nodes[at].Node().Labels[label] != held[0] })
		return placement.Place(s.chart.tree, s.gang, s.room)
	}
	// Mostly the tightest place of the map is in one domain of the label.
	plan, err := placement.Place(s.chart.tree, s.gang, s.room)
	if err != nil {
		return plan, err
	}
	if values, err := s.values(label, plan.Nodes); err == nil && len(values) == 1 {
		return plan, nil
	}
	return s.domain(label)
}

// domain finds the domain of a label that is filled best, and the tightest place
// in it.
func (s *search) domain(label string) (placement.Plan, error) {
	tree, err := placement.New(s.domains(label))
	if err != nil {
		return placement.Plan{}, fmt.Errorf("label %s: %w", label, err)
	}
	domains := search{chart: s.chart, nodes: s.nodes, gang: s.inside(label), room: s.translate(tree)}
	var last error
	for range maxDomains {
		plan, err := placement.Place(tree, domains.gang, domains.room)
		if err != nil {
			if last == nil {
				last = err
			}
			break
		}
		at := slices.IndexFunc(plan.Nodes, func(id int32) bool { return id >= 0 })
		group, _ := tree.Around(plan.Nodes[at], label)
		inside := *s
		inside.room = s.copy()
		inside.bar(func(at int) bool { return s.nodes[at].Node().Labels[label] != group.Name })
		if plan, err = placement.Place(s.chart.tree, inside.gang, inside.room); err == nil {
			return plan, nil
		}
		last = err
		for class := range domains.room.Fit {
			clear(domains.room.Fit[class][group.First:group.End])
		}
	}
	return placement.Plan{}, last
}

// members are the nodes of those that have one.
func (s *search) members() (ids []int32) {
	for _, m := range s.gang.Placed {
		ids = append(ids, m.Node)
	}
	return ids
}

// values are those of a label on nodes, sorted.
func (s *search) values(label string, ids []int32) (values []string, err error) {
	for _, id := range ids {
		if id == placement.None || s.chart.at[id] < 0 {
			continue
		}
		node := s.nodes[s.chart.at[id]].Node()
		value := node.Labels[label]
		if value == "" {
			return nil, fmt.Errorf("a member is on node %s, which has no label %s", node.Name, label)
		}
		if at, found := slices.BinarySearch(values, value); !found {
			values = slices.Insert(values, at, value)
		}
	}
	return values, nil
}

// domains are the scheduler's nodes in groups by the value of a label.
func (s *search) domains(label string) (groups []v1alpha1.Group) {
	where := map[string]int{}
	for _, info := range s.nodes {
		node := v1alpha1.Group{Name: info.Node().Name, Kind: v1alpha1.KindNode, Status: v1alpha1.StatusReady}
		value := info.Node().Labels[label]
		if value == "" {
			groups = append(groups, node)
			continue
		}
		at, ok := where[value]
		if !ok {
			at = len(groups)
			where[value] = at
			groups = append(groups, v1alpha1.Group{Name: value, Kind: label, Status: v1alpha1.StatusReady})
		}
		groups[at].Child = append(groups[at].Child, node)
	}
	return groups
}

// inside is the gang as a tree of the label's domains knows it, where none of
// its members is.
func (s *search) inside(label string) *placement.Gang {
	g := *s.gang
	g.Require, g.Prefer, g.Avoid = label, "", nil
	return &g
}

// translate is the room in the order of another tree of the same nodes, without
// what is to be avoided.
func (s *search) translate(to *placement.Tree) *placement.Capacity {
	out := placement.Capacity{Fit: make([][]int32, len(s.room.Fit))}
	from := make([]int32, to.Len())
	for at, id := range s.chart.ids {
		other, _ := to.ID(s.nodes[at].Node().Name)
		from[other] = id
	}
	for class := range s.room.Fit {
		out.Fit[class] = make([]int32, to.Len())
		for other, id := range from {
			if !slices.Contains(s.gang.Avoid, id) {
				out.Fit[class][other] = s.room.Fit[class][id]
			}
		}
	}
	if together := s.room.Together; together != nil {
		out.Together = func(node int32, pods []int32) bool { return together(from[node], pods) }
	}
	return &out
}

// copy is the room, to be changed.
func (s *search) copy() *placement.Capacity {
	out := *s.room
	out.Fit = make([][]int32, len(s.room.Fit))
	for class := range s.room.Fit {
		out.Fit[class] = slices.Clone(s.room.Fit[class])
	}
	return &out
}
