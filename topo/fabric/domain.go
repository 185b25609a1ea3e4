package fabric

import (
	"slices"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// domain is a group of one level of the tree. What it is called, what holds it
// and what it shows are computed from its members and children.
type domain struct {
	level int
	// key is the identity: the sort of evidence and its value.
	key string
	// members are the nodes in it, at any level below; the root's are those
	// in no other domain.
	members  set[*node]
	parent   *domain
	children set[*domain]
	// crosses is set for an NVLink domain that has nodes of several groups of
	// another level, and these have others: neither can hold the other.
	crosses bool
	// derived is the name that the switch's description or the key gives, name
	// the one that the domain has. memory are the names that the members
	// remember, claimed is that of more than half of them.
	derived, claimed, name string
	memory                 votes
	// isDescribed is set if derived is by a description.
	isDescribed bool

	shown *Element
}

func newDomain(level int, key string) *domain {
	return &domain{level: level, key: key, members: set[*node]{}, children: set[*domain]{}}
}

// The first bytes of keys.
const (
	keyPath   = 'p'
	keyNVLink = 'n'
	keySwitch = 's'
	keyBlock  = 'b'
)

// keys are the node's domains by level, "" where it has none, and whether its
// path made sense.
func (n *node) keys(levels []Level) (out keys, sound bool) {
	out, sound = pathNames(levels, n.Report.path())
	pathed, nvlink := out != (keys{}), n.Report.nvlinkDomain()
	for i, l := range levels {
		switch {
		case out[i] != "":
			out[i] = string(keyPath) + out[i]
		case l.Otherwise && pathed:
		case l.By == ByNVLink || l.By == ByBlock && nvlink != "":
			if nvlink != "" {
				out[i] = string(keyNVLink) + nvlink
			}
		case n.group == nil:
		case l.By == ByLeaf:
			out[i] = n.group.leafKey
		case l.By == BySpine && n.group.member.group != "":
			out[i] = n.group.spineKey
		case l.By == ByBlock:
			out[i] = string(keyBlock) + n.group.key
			if n.block != "" {
				out[i] += "/" + n.block
			}
		}
	}
	return out, sound
}

// tree is the nodes' domains, and what of them is to be computed again.
type tree struct {
	levels []Level
	// domains are by level and key; root holds what is in no group.
	domains []map[string]*domain
	root    *domain

	// nodes are those with another element, perhaps, moved those with other
	// domains.
	nodes, moved []*node
	// members are the domains with other members, described those with other
	// descriptions of switches, perhaps; elements, by level and with the root
	// behind, those with another element, perhaps.
	members, described set[*domain]
	elements           []set[*domain]
	// recross is set if Snapshot.Crossing is to be made again.
	recross bool
	last    *Snapshot
}

func newTree(levels []Level) tree {
	t := tree{
		levels: levels, root: newDomain(len(levels), ""), members: set[*domain]{}, described: set[*domain]{},
		elements: []set[*domain]{{}},
	}
	for range levels {
		t.domains, t.elements = append(t.domains, map[string]*domain{}), append(t.elements, set[*domain]{})
	}
	return t
}

type set[T comparable] map[T]struct{}

func (s set[T]) add(v T) { s[v] = struct{}{} }

// show and move mark nodes, in the order of calls: neighbors stay neighbors.
func (t *tree) show(list ...*node) {
	for _, n := range list {
		if !n.isChanged {
			n.isChanged = true
			t.nodes = append(t.nodes, n)
		}
	}
}

func (t *tree) move(list ...*node) {
	for _, n := range list {
		if !n.isMoved {
			n.isMoved = true
			t.moved = append(t.moved, n)
		}
	}
}

// showAgain marks a domain, nil for none, that shows something else, perhaps.
func (t *tree) showAgain(d *domain) {
	if d != nil {
		t.elements[d.level].add(d)
	}
}

// regroup brings the moved nodes' domains up to date, and what follows from
// their members for those domains.
func (t *tree) regroup() {
	for _, n := range t.moved {
		n.isMoved = false
		if n.isGone {
			continue
		}
		keys, sound := n.keys(t.levels)
		if n.badPath == sound {
			n.badPath = !sound
			t.show(n)
		}
		if n.home == nil || !slices.EqualFunc(keys[:len(t.levels)], n.chain, hasKey) {
			t.leave(n)
			t.join(n, &keys)
		}
	}
	t.moved = nil
	t.cross()
	t.redescribed()
	var named []*domain
	for d := range t.members {
		if t.recount(d); len(d.members) > 0 && d.remembers() {
			named = append(named, d)
		}
	}
	t.describeAll(named)
}

// hasKey reports whether d is the domain with that key, nil for none.
func hasKey(key string, d *domain) bool {
	if d == nil {
		return key == ""
	}
	return d.key == key
}

// join puts a node that is in no domain into those with the keys.
func (t *tree) join(n *node, keys *keys) {
	for i := range n.chain {
		if key := keys[i]; key != "" {
			d := t.domains[i][key]
			if d == nil {
				d = newDomain(i, key)
				d.derived = derive(t.levels[i].Kind, key)
				t.domains[i][key] = d
			}
			d.members.add(n)
			t.members.add(d)
			n.chain[i] = d
		}
	}
	t.rehome(n, n.lowest(t.root))
	t.show(n)
}

// leave takes a node out of its domains.
func (t *tree) leave(n *node) {
	for _, d := range n.chain {
		if d != nil {
			delete(d.members, n)
			t.members.add(d)
		}
	}
	clear(n.chain)
	n.dissent = 0
	t.rehome(n, nil)
}

// rehome makes a domain show a node, nil for none.
func (t *tree) rehome(n *node, home *domain) {
	if n.home == home {
		return
	}
	if n.home == t.root {
		delete(t.root.members, n)
	}
	if home == t.root {
		t.root.members.add(n)
	}
	t.showAgain(n.home)
	t.showAgain(home)
	n.home = home
}

// recount computes what follows from the members of a domain: its end, its
// parent, the members that contradict the others, and the name that they
// remember.
func (t *tree) recount(d *domain) {
	t.showAgain(d)
	if len(d.members) == 0 {
		delete(t.domains[d.level], d.key)
		t.attach(d, nil)
		return
	}
	parent := t.parent(d)
	if d.crosses {
		parent = nil
	}
	t.attach(d, parent)
	if t.levels[d.level].byPath() && parent != t.root && parent != nil {
		t.contradict(d, parent)
	}
	d.memory, d.claimed = votes{}, ""
	if !d.remembers() {
		return
	}
	for n := range d.members {
		if name := n.remembers(t.levels[d.level].Kind); name != "" {
			d.memory.add(name, 1)
		}
	}
	if name := d.memory.most(); 2*int(d.memory.count(name)) > len(d.members) {
		d.claimed = name
	}
}

// parent is the domain that most members are in at the nearest level above at
// which any is in one.
func (t *tree) parent(d *domain) *domain {
	for i := d.level - 1; i >= 0; i-- {
		var v votes
		for n := range d.members {
			if above := n.chain[i]; above != nil && !above.crosses {
				v.add(above.key, 1)
			}
		}
		if key := v.most(); key != "" {
			return t.domains[i][key]
		}
	}
	return t.root
}

func (t *tree) attach(d, parent *domain) {
	if d.parent == parent {
		return
	}
	if d.parent != nil {
		delete(d.parent.children, d)
	}
	if parent != nil {
		parent.children.add(d)
	}
	t.showAgain(d.parent)
	t.showAgain(parent)
	d.parent = parent
}

// contradict marks the members with a path that names another parent.
func (t *tree) contradict(d, parent *domain) {
	bit := uint32(1) << d.level
	for n := range d.members {
		other := n.chain[parent.level] != nil && n.chain[parent.level] != parent
		if other != (n.dissent&bit != 0) {
			n.dissent ^= bit
			t.show(n)
		}
	}
}

// compose makes the elements of the domains that changed, the lowest first,
// and the snapshot.
func (t *tree) compose() {
	for i := range slices.Backward(t.levels) {
		for d := range t.elements[i] {
			if shown := t.element(d); shown != d.shown {
				d.shown = shown
				t.showAgain(d.parent)
				t.recross = t.recross || d.crosses
			}
		}
		clear(t.elements[i])
	}
	if t.last == nil || t.recross || len(t.elements[t.root.level]) > 0 {
		t.last = t.last.next(t.root.shows(), t.crossing())
		clear(t.elements[t.root.level])
	}
}

// element is what a domain shows: what it showed if nothing changed, nil if it
// has nothing to show.
func (t *tree) element(d *domain) *Element {
	children := d.shows()
	if len(children) == 0 {
		return nil
	}
	e := &Element{
		Name: d.name, Kind: t.levels[d.level].Kind, Key: d.key[1:], NVLink: d.key[0] == keyNVLink, Child: children,
	}
	if t.levels[d.level].By == ByLeaf && d.key[0] == keySwitch {
		for n := range d.members { // Any: they are the leaf group's.
			e.Rails = n.group.cabling.expectations()
			break
		}
	}
	if o := d.shown; o != nil && o.Name == e.Name && slices.Equal(o.Child, children) && slices.Equal(o.Rails, e.Rails) {
		return o
	}
	sum := summarize(children)
	e.Nodes, e.Status = sum.nodes, sum.status(len(children))
	e.encode(&sum)
	return e
}

// shows are the elements of the domain's children and of its members without
// another domain below, sorted; of one that crosses others those of all members.
func (d *domain) shows() []*Element {
	var out []*Element
	for n := range d.members {
		if n.home == d || d.crosses {
			out = append(out, n.shown)
		}
	}
	for c := range d.children {
		if c.shown != nil {
			out = append(out, c.shown)
		}
	}
	slices.SortFunc(out, compareElements)
	return out
}

// summary is what the elements of a list are together.
type summary struct {
	ready, notReady int
	nodes           Count
	size            int
	digest          digest
}

func summarize(children []*Element) (s summary) {
	for _, e := range children {
		s.nodes.Ready += e.Nodes.Ready
		s.nodes.Degraded += e.Nodes.Degraded
		s.nodes.NotReady += e.Nodes.NotReady
		s.size += e.size
		s.digest.add(e.digest)
		switch e.Status {
		case v1alpha1.StatusReady:
			s.ready++
		case v1alpha1.StatusNotReady:
			s.notReady++
		}
	}
	return s
}

// status of a group: NotReady if every child is, Ready if every child is,
// else Degraded.
func (s *summary) status(children int) string {
	switch children {
	case s.notReady:
		return v1alpha1.StatusNotReady
	case s.ready:
		return v1alpha1.StatusReady
	}
	return v1alpha1.StatusDegraded
}
