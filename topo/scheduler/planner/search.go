package planner

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/placement"
)

// maxDomains bounds the values of a label that are tried for one gang.
const maxDomains = 8

// search looks for the place of one gang.
type search struct {
	tree     *tree
	nodes    []framework.NodeInfo
	gang     *placement.Gang
	capacity *placement.Capacity
}

// exclude takes the capacity of some nodes away.
func (s *search) exclude(which func(*corev1.Node) bool) {
	for at, id := range s.tree.ids {
		if !which(s.nodes[at].Node()) {
			continue
		}
		for class := range s.capacity.Fit {
			s.capacity.Fit[class][id] = 0
		}
	}
}

// place finds the tightest place; with a label, the tightest one of which all nodes
// have one value of the label.
func (s *search) place(label string) (placement.Plan, error) {
	if label == "" {
		return placement.Place(s.tree.placement, s.gang, s.capacity)
	}
	s.exclude(func(n *corev1.Node) bool { return n.Labels[label] == "" })
	var members []int32
	for _, m := range s.gang.Placed {
		members = append(members, m.Node)
	}
	held, err := s.values(label, members)
	switch {
	case err != nil:
		return placement.Plan{}, err
	case len(held) > 1:
		return placement.Plan{}, fmt.Errorf("its members are in %s of %s already", strings.Join(held, ", "), label)
	case len(held) == 1:
		return s.inDomain(label, held[0])
	}
	// In most clusters the tightest place of the tree is in one domain of the label.
	plan, err := placement.Place(s.tree.placement, s.gang, s.capacity)
	if err != nil {
		return plan, err
	}
	if values, err := s.values(label, plan.Nodes); err == nil && len(values) == 1 {
		return plan, nil
	}
	var first error
	for _, value := range s.domains(label) {
		plan, err := s.inDomain(label, value)
		if err == nil {
			return plan, nil
		}
		if first == nil {
			first = fmt.Errorf("%s %s: %w", label, value, err)
		}
	}
	return placement.Plan{}, first
}

// inDomain finds the tightest place on nodes with one value of a label.
func (s *search) inDomain(label, value string) (placement.Plan, error) {
	inside, capacity := *s, *s.capacity
	capacity.Fit = make([][]int32, len(s.capacity.Fit))
	for class := range capacity.Fit {
		capacity.Fit[class] = slices.Clone(s.capacity.Fit[class])
	}
	inside.capacity = &capacity
	inside.exclude(func(n *corev1.Node) bool { return n.Labels[label] != value })
	return placement.Place(s.tree.placement, s.gang, &capacity)
}

// values are those of a label on nodes of the tree, sorted.
func (s *search) values(label string, ids []int32) (values []string, err error) {
	for _, id := range ids {
		if id == placement.None || s.tree.at[id] < 0 {
			continue
		}
		node := s.nodes[s.tree.at[id]].Node()
		value := node.Labels[label]
		if value == "" {
			return nil, fmt.Errorf("a member is on node %s, which has no label %s", node.Name, label)
		}
		values = append(values, value)
	}
	slices.Sort(values)
	return slices.Compact(values), nil
}

// domains are the values of a label to try: best fit first, that is the ones with
// room for all pods of the gang, the fullest first, then the emptiest of the others.
func (s *search) domains(label string) []string {
	pods := 0
	for _, t := range s.gang.Tasks {
		pods += t.Pods
	}
	room := map[string]int{}
	var values []string
	for at, id := range s.tree.ids {
		value := s.nodes[at].Node().Labels[label]
		if value == "" || slices.Contains(s.gang.Avoid, id) {
			continue
		}
		if _, ok := room[value]; !ok {
			values = append(values, value)
		}
		// Of several classes the fewest, which holds for any mixture of them.
		fewest := s.capacity.Fit[0][id]
		for _, fit := range s.capacity.Fit[1:] {
			fewest = min(fewest, fit[id])
		}
		room[value] += int(fewest)
	}
	slices.SortStableFunc(values, func(a, b string) int {
		switch {
		case room[a] >= pods && room[b] >= pods:
			return cmp.Compare(room[a], room[b])
		default:
			return cmp.Compare(room[b], room[a])
		}
	})
	return values[:min(len(values), maxDomains)]
}
