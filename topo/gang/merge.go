package gang

import (
	"errors"
	"fmt"
	"slices"
)

// Merge makes one gang of what its members say and of its PodGroup object, nil
// if there is none. Members are in any order. What several say they must say
// alike; the error names what they do not, and the gang then has the first of
// the values.
func Merge(members []Spec, object *Spec) (Spec, error) {
	var g Spec
	m := merger{gang: &g}
	for i := range members {
		m.add(&members[i], false)
	}
	if object != nil {
		m.add(object, true)
	}
	if g.Policy == "" {
		g.Policy = OnceSatisfied
	}
	if g.Timeout == 0 {
		g.Timeout = DefaultTimeout
	}
	slices.Sort(g.Ignored)
	g.Ignored = slices.Compact(g.Ignored)
	return g, errors.Join(m.faults...)
}

type merger struct {
	gang   *Spec
	faults []error
}

func (m *merger) add(s *Spec, object bool) {
	g := m.gang
	g.Key = s.Key
	who := "its members say"
	if object {
		who = "its members and its PodGroup object say"
	}
	same(m, who, "min-available", &g.MinMember, s.MinMember)
	same(m, who, "match-policy", &g.Policy, s.Policy)
	same(m, who, "gpu-group-size", &g.GroupSize, s.GroupSize)
	same(m, who, "required level", &g.Required, s.Required)
	same(m, who, "preferred level", &g.Preferred, s.Preferred)
	same(m, who, "without map", &g.WithoutMap, s.WithoutMap)
	if s.Groups != nil {
		if g.Groups != nil && !slices.Equal(g.Groups, s.Groups) {
			m.fault(fmt.Errorf("groups: %s different things", who))
		} else {
			g.Groups = s.Groups
		}
	}
	// Patience is no fact about the job: the object's counts, else the longest.
	if object && s.Timeout > 0 {
		g.Timeout = s.Timeout
	} else {
		g.Timeout = max(g.Timeout, s.Timeout)
	}
	for _, remark := range s.Ignored {
		if len(g.Ignored) < MaxGroups && !slices.Contains(g.Ignored, remark) {
			g.Ignored = append(g.Ignored, remark)
		}
	}
}

// same takes a value over, or finds that it is another one.
func same[T comparable](m *merger, who, what string, to *T, value T) {
	var none T
	switch {
	case value == none || value == *to:
	case *to == none:
		*to = value
	default:
		m.fault(fmt.Errorf("%s: %s %v and %v", what, who, *to, value))
	}
}

// fault keeps the first of each kind: thousands of members would say the same.
func (m *merger) fault(err error) {
	for _, had := range m.faults {
		if had.Error() == err.Error() {
			return
		}
	}
	if len(m.faults) < 4 {
		m.faults = append(m.faults, err)
	}
}
