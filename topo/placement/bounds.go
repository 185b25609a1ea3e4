package placement

// restrict reads what is required of the group, and which nodes are barred: of
// a required kind all that are in no such group or, if members are in one, not
// beside them. Members in several groups of the kind cannot be mended: what is
// left goes into these groups.
func (p *planner) restrict() {
	t, g := p.tree, p.job.gang
	p.bounds = filter{inside: t.bit(g.Require), nodes: g.Require == kindNode, kind: -1}
	clear(p.barred)
	for _, node := range g.Avoid {
		if node >= 0 && int(node) < len(p.barred) {
			p.barred[node] = true
		}
	}
	if g.Require == "" {
		return
	}
	groups := p.memberGroups()
	for node := range p.barred {
		around := p.required(int32(node))
		if around < 0 || groups > 0 && !p.holdsMembers(around) {
			p.barred[node] = true
		}
	}
	if groups > 1 {
		p.bounds = filter{kind: -1}
	}
}

// required is the group of the required kind that a node is in, or the node if
// that is required; None if it is in none.
func (p *planner) required(node int32) int32 {
	if p.bounds.nodes {
		return node
	}
	t := p.tree
	for g := t.home[node]; g > 0; g = t.groups[g].parent {
		if 1<<t.groups[g].kind == p.bounds.inside {
			return g
		}
	}
	return None
}

// holdsMembers tells whether members are in what required returned.
func (p *planner) holdsMembers(at int32) bool {
	if p.bounds.nodes {
		return p.mates[at] > 0
	}
	return p.held[at] > 0
}

// memberGroups counts the groups of the required kind that members are in; two
// stand for more.
func (p *planner) memberGroups() int {
	first := None
	for _, node := range p.job.at {
		if node < 0 {
			continue
		}
		switch at := p.required(node); {
		case at < 0 || at == first:
		case first >= 0:
			return 2
		default:
			first = at
		}
	}
	if first < 0 {
		return 0
	}
	return 1
}
