package fabric

import "slices"

// Axis is along what nodes are grouped. Which GPUs are behind one NVLink switch
// and which ports behind one leaf are two facts: an NVL72 rack of 18 trays may
// stand across leaves of 32.
type Axis string

// The axes.
const (
	// AxisAuto has both as far as they are one tree: the fabric's groups, and in
	// them the NVLink domains of which none is cut.
	AxisAuto Axis = "auto"
	// AxisFabric has no NVLink domains.
	AxisFabric Axis = "fabric"
	// AxisNVLink has nothing but NVLink domains, each whole.
	AxisNVLink Axis = "nvlink"
)

// Along is the same nodes along an axis. It is s itself if that is alike.
func (s *Snapshot) Along(axis Axis) *Snapshot {
	switch axis {
	case AxisFabric:
		return s.next(dissolve(s.Child), s.Crossing)
	case AxisNVLink:
		d := domains{domain: set[*Element]{}}
		for _, e := range s.Crossing {
			d.add(e)
		}
		d.walk(s.Child)
		slices.SortFunc(d.list, compareElements)
		return s.next(d.list, s.Crossing)
	default:
		return s
	}
}

// dissolve puts what NVLink domains hold in their place; the list itself comes
// back if it has none.
func dissolve(list []*Element) []*Element {
	var out []*Element
	for i, e := range list {
		below := dissolve(e.Child)
		same := !e.NVLink && (len(below) == 0 || &below[0] == &e.Child[0])
		if same && out == nil {
			continue
		}
		if out == nil {
			out = slices.Clone(list[:i])
		}
		switch {
		case e.NVLink:
			out = append(out, below...)
		case same:
			out = append(out, e)
		default:
			out = append(out, e.with(below))
		}
	}
	if out == nil {
		return list
	}
	slices.SortFunc(out, compareElements)
	return out
}

// with is a group with other children.
func (e *Element) with(children []*Element) *Element {
	out := *e
	sum := summarize(children)
	out.Child, out.body = children, nil
	out.Nodes, out.Status = sum.nodes, sum.status(len(children))
	out.encode(&sum)
	return &out
}

// domains collects NVLink domains, and nodes in none.
type domains struct {
	list []*Element
	// domain are the nodes in one.
	domain set[*Element]
}

// add takes a domain with the nodes at any level below it, unless a level before
// had them: block and nvlink may both be levels.
func (d *domains) add(e *Element) {
	nodes := e.nodes(nil)
	if _, had := d.domain[nodes[0]]; had {
		return
	}
	for _, n := range nodes {
		d.domain.add(n)
	}
	if !slices.Equal(e.Child, nodes) {
		slices.SortFunc(nodes, compareElements)
		e = e.with(nodes)
	}
	d.list = append(d.list, e)
}

func (d *domains) walk(list []*Element) {
	for _, e := range list {
		_, had := d.domain[e]
		switch {
		case e.NVLink:
			d.add(e)
		case len(e.Child) > 0:
			d.walk(e.Child)
		case !had:
			d.list = append(d.list, e)
		}
	}
}

// nodes appends the nodes at or below an element.
func (e *Element) nodes(into []*Element) []*Element {
	if len(e.Child) == 0 {
		return append(into, e)
	}
	for _, c := range e.Child {
		into = c.nodes(into)
	}
	return into
}

// cross finds which of the NVLink domains with other members, or with nodes of
// which the groups have other members, cross those groups now.
func (t *tree) cross() {
	again := set[*domain]{}
	for d := range t.members {
		if d.isNVLink() {
			again.add(d)
			continue
		}
		if !slices.ContainsFunc(t.levels[:d.level], func(l Level) bool { return l.By == ByNVLink || l.By == ByBlock }) {
			continue
		}
		for n := range d.members {
			for _, above := range n.chain[:d.level] {
				if above != nil && above.isNVLink() {
					again.add(above)
				}
			}
		}
	}
	for d := range again {
		if now := d.isCut(); now != d.crosses {
			d.crosses, t.recross = now, true
			t.members.add(d)
			t.follow(d)
		}
	}
}

// follow gives the members of a domain that crosses others, or no longer does,
// another home, and the domains below it another parent.
func (t *tree) follow(d *domain) {
	for n := range d.members {
		t.rehome(n, n.lowest(t.root))
		for _, below := range n.chain[d.level+1:] {
			if below != nil {
				t.members.add(below)
			}
		}
	}
}

func (d *domain) isNVLink() bool { return len(d.key) > 0 && d.key[0] == keyNVLink }

// isCut reports whether the groups of the other levels have only some of the
// domain's members each, or others besides. A node of which no cable is known is
// where the others are.
func (d *domain) isCut() bool {
	var deepest *domain
	for n := range d.members {
		if at := n.above(d); at != nil && (deepest == nil || at.level > deepest.level) {
			deepest = at
		}
	}
	for n := range d.members {
		if at := n.above(d); at != nil && at != deepest && !d.isNested(deepest, at) {
			return true
		}
		for _, below := range n.chain[d.level+1:] {
			if below != nil && !below.isNVLink() && !below.isIn(d) {
				return true
			}
		}
	}
	return false
}

// isNested reports whether a member that is in the inner of two groups is in the
// outer as well.
func (d *domain) isNested(inner, outer *domain) bool {
	for n := range d.members {
		if n.chain[inner.level] == inner && n.chain[outer.level] == outer {
			return true
		}
	}
	return false
}

// above is the lowest group of the node that is no NVLink domain and stands
// above one.
func (n *node) above(d *domain) *domain {
	for _, above := range slices.Backward(n.chain[:d.level]) {
		if above != nil && !above.isNVLink() {
			return above
		}
	}
	return nil
}

func (d *domain) isIn(o *domain) bool {
	for n := range d.members {
		if n.chain[o.level] != o {
			return false
		}
	}
	return true
}

// lowest is the domain that shows the node.
func (n *node) lowest(root *domain) *domain {
	for _, d := range slices.Backward(n.chain) {
		if d != nil && !d.crosses {
			return d
		}
	}
	return root
}

// showCrossing marks the domains that show a node beside the tree.
func (t *tree) showCrossing(n *node) {
	for _, d := range n.chain {
		if d != nil && d.crosses {
			t.showAgain(d)
		}
	}
}

// crossing are the elements of the domains that cross others.
func (t *tree) crossing() []*Element {
	if t.last != nil && !t.recross {
		return t.last.Crossing
	}
	t.recross = false
	var out []*Element
	for _, level := range t.domains {
		for _, d := range level {
			if d.crosses && d.shown != nil {
				out = append(out, d.shown)
			}
		}
	}
	slices.SortFunc(out, compareElements)
	return out
}
