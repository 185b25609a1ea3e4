package suspect

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// State is how sure the evidence is.
type State string

const (
	// Suspect is a node or group on which two gangs or more failed that run elsewhere, or that had faults of its own.
	Suspect State = "Suspect"
	// Doubt is one of several nodes on which two gangs or more failed, or gangs which have run nowhere yet.
	Doubt State = "Doubt"
)

// KindNode and KindGroup are the kinds of places.
const (
	KindNode  = "node"
	KindGroup = "group"
)

// Place is a node, or a group of nodes, on which gangs failed.
type Place struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	State State  `json:"state"`
	// Score counts the gangs, each from 1 to 0 by its age.
	Score    float64    `json:"score"`
	Evidence []Evidence `json:"evidence"`
	// Nodes are the nodes of a group on which gangs failed.
	Nodes []string `json:"nodes,omitempty"`
}

// Evidence is a failure of a gang.
type Evidence struct {
	Gang   string    `json:"gang"`
	Time   time.Time `json:"time"`
	Reason string    `json:"reason"`
	// Of is the number of nodes that the failure may come from.
	Of int `json:"of"`
}

// Answer has what is suspect, and the nodes that a gang avoids while others have room, the most suspect first.
type Answer struct {
	Suspects []Place  `json:"suspects"`
	Avoids   []string `json:"avoids,omitempty"`
}

// Places returns what is suspect at a time.
func (m *Memory) Places(now time.Time) []Place {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.judge(now)
	return m.places
}

// Avoid returns the nodes that a gang had better avoid, the most suspect first and nodes with bad cables last: the
// first sure ones also if it must then spread further.
func (m *Memory) Avoid(gang string, now time.Time) (nodes []string, sure int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.judge(now)
	add := func(more ...string) {
		for _, node := range more {
			if !slices.Contains(nodes, node) {
				nodes = append(nodes, node)
			}
		}
	}
	for _, state := range []State{Suspect, Doubt} {
		for i := range m.places {
			if p := &m.places[i]; p.State == state && p.Kind == KindNode {
				add(p.Name)
			} else if p.State == state {
				add(p.Nodes...)
			}
		}
		if state == Suspect {
			sure = len(nodes)
			add(m.own[gang]...)
		}
	}
	add(slices.Sorted(maps.Keys(m.cables))...)
	return nodes, sure
}

// judge looks at the evidence again if the last one does not hold any more.
func (m *Memory) judge(now time.Time) {
	if !m.stale && now.Sub(m.judged) < judgeEvery && !now.Before(m.judged) {
		return
	}
	m.stale, m.judged, m.own = false, now, map[string][]string{}
	m.forget(now)
	c := m.collect(now)
	for i := range c.attempts {
		a := &c.attempts[i]
		m.own[a.Gang] = append(slices.Clone(a.nodes), m.own[a.Gang]...)
	}
	m.places = append(c.suspectNodes(now), c.suspectGroups(now, m.groups)...)
	slices.SortStableFunc(m.places, func(a, b Place) int {
		return cmp.Or(-cmp.Compare(a.State, b.State), cmp.Compare(b.Score, a.Score), cmp.Compare(a.Name, b.Name))
	})
}

// against returns the last failure of each gang that counts against each node.
func (c *court) against() map[string][]*attempt {
	out := map[string][]*attempt{}
	for i := range c.attempts {
		a := &c.attempts[i]
		for _, node := range a.nodes {
			if !c.cleared(a, node) {
				before := func(b *attempt) bool { return a.Gang == b.Gang }
				out[node] = append(slices.DeleteFunc(out[node], before), a)
			}
		}
	}
	return out
}

func (c *court) suspectNodes(now time.Time) (out []Place) {
	against, weight := c.against(), map[string]int{}
	for node, failures := range against {
		weight[node] = c.proven(failures, "")
	}
	for _, node := range slices.Sorted(maps.Keys(against)) {
		p := Place{Kind: KindNode, Name: node, State: Doubt}
		for _, a := range against[node] {
			p.add(a, now)
		}
		if len(p.Evidence) < 2 || p.Score < 1 {
			continue
		}
		sure := weight[node]
		for other, failures := range weight {
			if other != node && failures >= weight[node] {
				sure = min(sure, c.proven(against[node], other))
			}
		}
		if sure >= 2 {
			p.State = Suspect
		}
		out = append(out, p)
	}
	return out
}

// proven counts the failures that come from a node and not from the gang, and cannot come from another node.
func (c *court) proven(failures []*attempt, other string) (n int) {
	for _, a := range failures {
		if (a.own || a.moved) && (!slices.Contains(a.nodes, other) || c.cleared(a, other)) {
			n++
		}
	}
	return n
}

// add adds a failure to the evidence.
func (p *Place) add(a *attempt, now time.Time) {
	p.Evidence = append(p.Evidence, a.Evidence)
	p.Score += math.Exp2(-float64(max(now.Sub(a.Time), 0)) / float64(halfLife))
}

// groupGangs is how many gangs, no two with a node in common, must fail in a group.
const groupGangs = 3

// suspectGroups finds groups in which gangs fail that have nothing else in common.
func (c *court) suspectGroups(now time.Time, groups map[string]string) (out []Place) {
	in := map[string][]*attempt{}
	for i := range c.attempts {
		a := &c.attempts[i]
		group := groups[a.nodes[0]]
		speaks := func(node string) bool { return groups[node] != group || c.cleared(a, node) }
		if group != "" && a.moved && !a.own && len(a.nodes) > 1 && !slices.ContainsFunc(a.nodes, speaks) {
			in[group] = append(in[group], a)
		}
	}
	for _, group := range slices.Sorted(maps.Keys(in)) {
		p, gangOf, shared := Place{Kind: KindGroup, Name: group, State: Suspect}, map[string]string{}, false
		for i, a := range in[group] {
			for _, node := range a.nodes {
				shared = shared || gangOf[node] != "" && gangOf[node] != a.Gang
				gangOf[node] = a.Gang
			}
			if !slices.ContainsFunc(in[group][:i], func(b *attempt) bool { return a.Gang == b.Gang }) {
				p.add(a, now)
			}
		}
		if p.Nodes = slices.Sorted(maps.Keys(gangOf)); len(p.Evidence) >= groupGangs && !shared {
			out = append(out, p)
		}
	}
	return out
}
