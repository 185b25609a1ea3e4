package suspect

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Answer has what is suspect, and the nodes that a gang avoids while others have room, the most suspect first.
type Answer struct {
	Suspects []Place  `json:"suspects"`
	Avoids   []string `json:"avoids,omitempty"`
}

// State is how sure a verdict is.
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

// attempt is a run of a gang that failed.
type attempt struct {
	Evidence
	nodes []string
	// own reports that the node had a fault of its own, moved that the gang ran well at another time.
	own, moved bool
}

// verdict is the result for a time. Places are ordered, the most suspect first; own has for each gang the nodes of
// its failures, the last first.
type verdict struct {
	places []Place
	own    map[string][]string
}

// Places returns what is suspect at a time.
func (m *Memory) Places(now time.Time) []Place {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.judge(now)
	return m.verdict.places
}

// Avoid returns the nodes that a gang had better avoid, the most suspect first: the first sure ones also if it must
// then spread further.
func (m *Memory) Avoid(gang string, now time.Time) (nodes []string, sure int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.failed {
		return nil, 0
	}
	m.judge(now)
	add := func(more ...string) {
		for _, node := range more {
			if !slices.Contains(nodes, node) {
				nodes = append(nodes, node)
			}
		}
	}
	for _, state := range []State{Suspect, Doubt} {
		for i := range m.verdict.places {
			if p := &m.verdict.places[i]; p.State == state && p.Kind == KindNode {
				add(p.Name)
			} else if p.State == state {
				add(p.Nodes...)
			}
		}
		if state == Suspect {
			sure = len(nodes)
			add(m.verdict.own[gang]...)
		}
	}
	return nodes, sure
}

// judge makes a new verdict if the last one does not hold any more.
func (m *Memory) judge(now time.Time) {
	if !m.stale && now.Sub(m.judged) < judgeEvery && !now.Before(m.judged) {
		return
	}
	m.stale, m.judged = false, now
	m.forget(now)
	c := m.collect(now)
	m.verdict = verdict{own: map[string][]string{}}
	for i := range c.attempts {
		a := &c.attempts[i]
		m.verdict.own[a.Gang] = append(slices.Clone(a.nodes), m.verdict.own[a.Gang]...)
	}
	m.verdict.places = append(c.suspectNodes(now), c.suspectGroups(now, m.groups)...)
	slices.SortStableFunc(m.verdict.places, func(a, b Place) int {
		return cmp.Or(-cmp.Compare(a.State, b.State), cmp.Compare(b.Score, a.Score), cmp.Compare(a.Name, b.Name))
	})
}

// court has the failures that count, in the order of time, and when a gang last began to run well on each node.
type court struct {
	attempts []attempt
	good     map[string]time.Time
}

func (m *Memory) collect(now time.Time) *court {
	c := &court{good: map[string]time.Time{}}
	for _, gang := range slices.Sorted(maps.Keys(m.gangs)) {
		pods := slices.SortedFunc(maps.Values(m.gangs[gang]), func(a, b Pod) int {
			return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.UID, b.UID))
		})
		ran := c.proof(pods, now)
		failures := slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool { return p.Failure == "" })
		slices.SortStableFunc(failures, func(a, b Pod) int { return a.End.Compare(b.End) })
		var last Pod
		for _, p := range failures {
			if last.UID != "" && !p.Start.After(last.End) && p.End.Sub(last.End) <= settle {
				continue // It failed with the first.
			}
			last = p
			if a := m.attempt(pods, &p); a != nil {
				a.moved = ran
				c.attempts = append(c.attempts, *a)
			}
		}
	}
	slices.SortStableFunc(c.attempts, func(a, b attempt) int { return a.Time.Compare(b.Time) })
	return c
}

// proof notes where the pods of a gang ran well, and reports whether they did anywhere.
func (c *court) proof(pods []Pod, now time.Time) (ran bool) {
	for _, p := range pods {
		end := p.End
		if end.IsZero() {
			end = now
		}
		if end.Sub(p.Start) >= proven {
			ran = true
			if p.Start.After(c.good[p.Node]) {
				c.good[p.Node] = p.Start
			}
		}
	}
	return ran
}

// attempt returns the failed run of a gang whose first failure is a pod's; nil if it says nothing about a node: the
// gang had run well, or its pods fail wherever they are.
func (m *Memory) attempt(pods []Pod, first *Pod) *attempt {
	a := &attempt{Evidence: Evidence{Gang: first.Gang, Time: first.End, Reason: first.Failure}}
	whole := first.Start
	for _, p := range pods {
		if p.Start.After(first.End) || !p.End.IsZero() && p.End.Before(first.End) {
			continue
		}
		if p.Start.After(whole) {
			whole = p.Start
		}
		if !slices.Contains(a.nodes, p.Node) {
			a.nodes = append(a.nodes, p.Node)
		}
	}
	var ill []string
	for _, node := range a.nodes {
		near := func(f Fault) bool { return f.Since.Sub(first.End).Abs() <= faultNear }
		if i := slices.IndexFunc(m.faults[node], near); i >= 0 {
			ill, a.Reason = append(ill, node), m.faults[node][i].Reason
		}
	}
	switch {
	case len(ill) > 0:
		a.nodes, a.own = ill, true
	case first.End.Sub(whole) >= proven:
		return nil
	}
	slices.Sort(a.nodes)
	a.Of = len(a.nodes)
	return a
}

// against returns the last failure of each gang that counts against a node: none before a run that went well.
func (c *court) against(node string) (out []*attempt) {
	of := map[string]int{}
	for i := range c.attempts {
		a := &c.attempts[i]
		if !slices.Contains(a.nodes, node) || c.good[node].After(a.Time) {
			continue
		}
		if at, again := of[a.Gang]; again {
			out[at] = a
			continue
		}
		of[a.Gang] = len(out)
		out = append(out, a)
	}
	return out
}

// blamed reports whether a gang that has run nowhere failed in two places without a common node: its code fails.
func (c *court) blamed(gang string) bool {
	var common []string
	for i := range c.attempts {
		switch a := &c.attempts[i]; {
		case a.Gang != gang || a.own:
		case a.moved:
			return false
		case common == nil:
			common = a.nodes
		default:
			common = slices.DeleteFunc(slices.Clone(common), func(n string) bool { return !slices.Contains(a.nodes, n) })
			if len(common) == 0 {
				return true
			}
		}
	}
	return false
}

func (c *court) suspectNodes(now time.Time) (out []Place) {
	twins := map[string]int{}
	var keys []string
	for _, node := range c.nodes() {
		p := Place{Kind: KindNode, Name: node, State: Doubt}
		var key strings.Builder
		sure := 0
		for _, a := range c.against(node) {
			if !a.own && c.blamed(a.Gang) {
				continue
			}
			if a.own || a.moved {
				sure++
			}
			key.WriteString(a.Gang + " ")
			p.add(a, now)
		}
		if len(p.Evidence) < 2 || p.Score < 1 {
			continue
		}
		if sure >= 2 {
			p.State = Suspect
		}
		twins[key.String()]++
		keys, out = append(keys, key.String()), append(out, p)
	}
	for i := range out {
		own := slices.ContainsFunc(out[i].Evidence, func(e Evidence) bool { return e.Of == 1 })
		if twins[keys[i]] > 1 && !own {
			out[i].State = Doubt // The failures do not tell these nodes apart.
		}
	}
	return out
}

// nodes returns the nodes on which gangs failed.
func (c *court) nodes() []string {
	all := map[string]bool{}
	for i := range c.attempts {
		for _, node := range c.attempts[i].nodes {
			all[node] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// add adds a failure to the evidence.
func (p *Place) add(a *attempt, now time.Time) {
	p.Evidence = append(p.Evidence, a.Evidence)
	p.Score += math.Exp2(-float64(max(now.Sub(a.Time), 0)) / float64(halfLife))
}

// groupGangs is how many gangs must fail in a group of which no two have a node in common.
const groupGangs = 3

// suspectGroups finds groups in which gangs fail that have nothing else in common.
func (c *court) suspectGroups(now time.Time, groups map[string]string) (out []Place) {
	in := map[string][]string{}
	for _, node := range c.nodes() {
		if group := groups[node]; group != "" {
			in[group] = append(in[group], node)
		}
	}
	for _, group := range slices.Sorted(maps.Keys(in)) {
		p, gangs := Place{Kind: KindGroup, Name: group, State: Suspect, Nodes: in[group]}, map[string]bool{}
		shared := false
		for _, node := range in[group] {
			for _, a := range c.against(node) {
				outside := func(n string) bool { return groups[n] != group }
				if a.own || !a.moved || len(a.nodes) < 2 || slices.ContainsFunc(a.nodes, outside) {
					continue
				}
				if gangs[a.Gang] {
					continue
				}
				gangs[a.Gang] = true
				p.add(a, now)
			}
			shared = shared || len(c.against(node)) > 1
		}
		good := slices.ContainsFunc(in[group], func(n string) bool { return c.good[n].After(c.attempts[0].Time) })
		if len(gangs) >= groupGangs && !shared && !good {
			out = append(out, p)
		}
	}
	return out
}
