package planner

import (
	"slices"
	"sort"
)

// PlanAround plans as [Planner.Plan] does, without as many of the suspect nodes as there is other room for: suspects
// are ordered, the most suspect first. The first sure ones are avoided even if a gang must spread further, the others
// only at the same tier.
func (p *Planner) PlanAround(r *Request, suspects []string, sure int) Plan {
	first := p.Plan(r)
	if !first.uses(suspects) {
		return first
	}
	plan := first
	trial := *r
	trial.Gangs = slices.Clone(r.Gangs)
	sort.Search(len(suspects), func(used int) bool {
		n := len(suspects) - used
		for i := range trial.Gangs {
			trial.Gangs[i].Avoid = slices.Concat(r.Gangs[i].Avoid, suspects[:n])
		}
		other := p.Plan(&trial)
		enough := first.replaces(&other, n <= sure)
		if enough {
			plan = other
		}
		return enough
	})
	return plan
}

// uses reports whether a member gets one of some nodes.
func (p *Plan) uses(nodes []string) bool {
	return slices.ContainsFunc(p.Places, func(place Place) bool {
		return slices.ContainsFunc(nodes, func(node string) bool { return slices.Contains(place.Nodes, node) })
	})
}

// replaces reports whether another plan has nodes for as many members, at the same tiers unless wider ones will do.
func (p *Plan) replaces(other *Plan, wider bool) bool {
	without := func(place *Place) (n int) {
		for _, node := range place.Nodes {
			if node == "" {
				n++
			}
		}
		return n
	}
	for i := range other.Places {
		a, b := &p.Places[i], &other.Places[i]
		if without(b) > without(a) || !wider && a.Kind != b.Kind {
			return false
		}
	}
	return other.Places != nil
}
