package fabric

import (
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Config is how a builder is made.
type Config struct {
	// Levels are the tree's, top first; see [Preset].
	Levels []Level
	// StaleAfter is the age from which a heartbeat makes a node Degraded; 0
	// means DefaultStaleAfter.
	StaleAfter time.Duration
}

// DefaultStaleAfter is three heartbeats.
const DefaultStaleAfter = 3 * v1alpha1.HeartbeatInterval

// maxSkew is how far ahead a worker's clock may be.
const maxSkew = time.Minute

// Builder builds the tree. Put, Heartbeat and Remove take what changed, and
// Snapshot computes again what follows from it: the leaf groups of the changed
// nodes, the domains that they are in, and the tree above. A Builder is for one
// goroutine, its snapshots are for any.
type Builder struct {
	staleAfter time.Duration
	now        time.Time
	// due is when the first node may become stale, zero for never.
	due time.Time

	nodes      map[string]*node
	leaves     grouping[*node]
	recent     [recent]*leaf
	leafGroups map[string]*leafGroup
	spines     grouping[*leafGroup]
	hcas       hcas
	shapes     shapes
	tree       tree

	// expected counts the leaf groups that expect nodes on a switch, peers are the
	// groups with uplinks to it.
	expected map[string]int
	peers    map[string]set[*leafGroup]

	// groups are the leaf groups to check again, raised those with other spines,
	// perhaps, uplinks the leaves with other uplinks.
	groups, raised set[*leafGroup]
	uplinks        []string
}

// New makes a builder without nodes.
func New(c Config) (*Builder, error) {
	if err := CheckLevels(c.Levels); err != nil {
		return nil, err
	}
	if c.StaleAfter < 0 {
		return nil, errors.New("staleAfter is negative")
	}
	if c.StaleAfter == 0 {
		c.StaleAfter = DefaultStaleAfter
	}
	return &Builder{
		staleAfter: c.StaleAfter, nodes: map[string]*node{}, tree: newTree(slices.Clone(c.Levels)),
		leaves: newGrouping[*node](), leafGroups: map[string]*leafGroup{}, spines: newGrouping[*leafGroup](),
		hcas: hcas{first: map[uint64]*node{}, doubles: map[uint64][]*node{}}, groups: set[*leafGroup]{},
		expected: map[string]int{}, peers: map[string]set[*leafGroup]{}, raised: set[*leafGroup]{},
		shapes: shapes{all: map[string]*shape{}, changed: set[string]{}},
	}, nil
}

// Put adds nodes or replaces all that is known of them; of two with one name
// the last counts.
func (b *Builder) Put(nodes ...Node) {
	if len(b.nodes) == 0 { // Growing these maps is a tenth of a first tree.
		b.nodes = make(map[string]*node, len(nodes))
		b.hcas.first = make(map[uint64]*node, usualPorts*len(nodes))
		b.hcas.changes = make([]portChange, 0, len(nodes))
	}
	for i := range nodes {
		b.put(&nodes[i])
	}
}

// usualPorts is how many fabric ports a node has.
const usualPorts = 8

func (b *Builder) put(now *Node) {
	n := b.nodes[now.Name]
	if n == nil {
		n = &node{Node: Node{Name: now.Name}, chain: make([]*domain, len(b.tree.levels))}
		n.member.owner = n
		b.nodes[now.Name] = n
	}
	if !slices.Equal(n.Names, now.Names) {
		b.tree.leave(n) // While its domains count the old names.
	}
	if n.Report != now.Report {
		b.report(n, now.Report)
	}
	n.Node = *now
	b.tree.move(n)
	b.tree.show(n)
}

// report gives a node another report, nil for none.
func (b *Builder) report(n *node, now *Report) {
	was, ports, uplinks, upLeaves := n.Report, n.ports, n.Report.uplinks(), n.upLeaves()
	n.Report, n.ports = now, b.ports(now)
	shape := n.shape
	if n.shape = nil; now != nil {
		n.shape = b.shapes.of(now.shape, n.ports)
	}
	b.shapes.count(n.shape, shape)
	b.hcas.changed(n, ports)
	follows := now != nil && len(now.accelerators) == 0
	if !slices.EqualFunc(ports, n.ports, sameLink) || follows != n.member.follows {
		b.leaves.set(&n.member, n.links(), follows)
	}
	if n.group != nil && (!was.sameHardware(now) || !slices.EqualFunc(ports, n.ports, samePort)) {
		b.groups.add(n.group)
	}
	if !slices.EqualFunc(ports, n.ports, sameFar) {
		b.tree.redescribe(n, ByLeaf, ByBlock)
	}
	if !slices.Equal(uplinks, n.Report.uplinks()) {
		b.tree.redescribe(n, BySpine)
	}
	if now := n.upLeaves(); !slices.Equal(upLeaves, now) || !slices.Equal(uplinks, n.Report.uplinks()) {
		b.uplinks = append(append(b.uplinks, upLeaves...), now...)
	}
}

// Heartbeat records a heartbeat of a node.
func (b *Builder) Heartbeat(name string, at time.Time) {
	n := b.nodes[name]
	if n == nil || n.Heartbeat.Equal(at) {
		return
	}
	backward := at.Before(n.Heartbeat) || n.Heartbeat.IsZero()
	n.Heartbeat = at
	if backward || n.overdue || at.After(b.now.Add(maxSkew)) {
		b.tree.show(n)
	}
}

// Remove takes a node away.
func (b *Builder) Remove(name string) {
	n := b.nodes[name]
	if n == nil {
		return
	}
	delete(b.nodes, name)
	b.report(n, nil)
	b.tree.leave(n)
	n.isGone = true
}

// Snapshot brings the tree up to date and returns it. now decides which
// heartbeats are too old. Without any change the same snapshot comes back.
func (b *Builder) Snapshot(now time.Time) *Snapshot {
	if now.After(b.now) {
		b.now = now
	}
	doubles := make(chan []*node, 1)
	go func() { doubles <- b.hcas.recount() }() // A tenth of a first tree, that nothing before showNodes needs.
	b.findStale()
	b.groupNodes()
	b.compareShapes()
	b.checkCabling()
	b.groupLeafGroups()
	b.tree.regroup()
	b.tree.rename()
	b.tree.show(<-doubles...)
	b.showNodes()
	b.tree.compose()
	return b.tree.last
}

// findStale looks through the heartbeats when the first of them may be too old.
// That is seldom: heartbeats that arrived meanwhile put it off by StaleAfter.
func (b *Builder) findStale() {
	if b.due.IsZero() || b.now.Before(b.due) {
		return
	}
	b.due = time.Time{}
	for _, n := range b.nodes {
		reason, next := b.heartbeat(n)
		if (reason.Kind != "") != n.overdue {
			b.tree.show(n)
		}
		b.wait(next)
	}
}

// wait makes findStale run at that time.
func (b *Builder) wait(until time.Time) {
	if !until.IsZero() && (b.due.IsZero() || until.Before(b.due)) {
		b.due = until
	}
}

// compareShapes has the groups checked again of which nodes are now taken for nodes
// of another shape.
func (b *Builder) compareShapes() {
	turned := b.shapes.regard()
	if len(turned) == 0 {
		return
	}
	for _, n := range b.nodes {
		if _, ok := turned[n.shape]; ok && n.group != nil {
			b.groups.add(n.group)
		}
	}
}

// checkCabling checks the leaf groups that changed.
func (b *Builder) checkCabling() {
	groups := slices.Collect(maps.Keys(b.groups))
	clear(b.groups)
	checked := make([]cabling, len(groups))
	parallel(len(groups), func(from, to int) {
		for i := from; i < to; i++ {
			checked[i] = check(groups[i])
		}
	})
	for i, g := range groups {
		if len(g.members) > 0 {
			b.apply(g, checked[i])
			continue
		}
		b.spines.set(&g.member, nil, false)
		b.expect(g.cabling.leaves, nil)
		b.meet(g, nil)
		delete(b.raised, g)
		if b.leafGroups[g.key] == g {
			delete(b.leafGroups, g.key)
		}
	}
	for g := range b.raised {
		b.raise(g)
	}
	clear(b.raised)
}

// apply takes over the outcome of a cabling check.
func (b *Builder) apply(g *leafGroup, now cabling) {
	for i, n := range g.members {
		if found := now.findings[i]; !slices.Equal(found, n.cabling) {
			n.cabling = found
			b.tree.show(n)
		}
	}
	now.findings = nil
	was := g.cabling
	g.cabling = now
	if !slices.Equal(was.rails, now.rails) {
		b.showRails(g)
	}
	if slices.ContainsFunc(b.tree.levels, func(l Level) bool { return l.By == BySpine }) {
		b.raised.add(g)
		b.expect(was.leaves, now.leaves)
	}
	if i := slices.IndexFunc(b.tree.levels, func(l Level) bool { return l.By == ByBlock }); i >= 0 {
		b.tree.move(g.blocks(b.tree.levels[i].Nodes)...)
	}
}

// showRails marks the domains that show what a leaf group expects.
func (b *Builder) showRails(g *leafGroup) {
	for i, l := range b.tree.levels {
		if d := b.tree.domains[i][g.leafKey]; d != nil && l.By == ByLeaf {
			b.tree.elements[i].add(d)
		}
	}
}

// showNodes makes the elements of the nodes that changed.
func (b *Builder) showNodes() {
	nodes := slices.DeleteFunc(b.tree.nodes, func(n *node) bool { return n.isGone })
	elements := make([]*Element, len(nodes))
	parallel(len(nodes), func(from, to int) {
		for i := from; i < to; i++ {
			elements[i] = b.nodeElement(nodes[i])
		}
	})
	for i, n := range nodes {
		n.isChanged = false
		if n.shown == nil || !n.shown.same(elements[i]) {
			n.shown = elements[i]
			b.tree.showAgain(n.home)
			b.tree.showCrossing(n)
		}
		reason, next := b.heartbeat(n)
		n.overdue = reason.Kind != ""
		b.wait(next)
	}
	b.tree.nodes = nil
}

// worthwhile is from how many things two goroutines are faster than one.
const worthwhile = 64

// parallel has the numbers below n worked on by all processors. Of a first tree
// the reports, the leaf groups and the nodes' elements are made so: without, it
// takes half as long again (BenchmarkFirstTree).
func parallel(n int, work func(from, to int)) {
	parts := min(runtime.GOMAXPROCS(0), 1+n/worthwhile)
	var others sync.WaitGroup
	for i := 1; i < parts; i++ {
		others.Go(func() { work(n*i/parts, n*(i+1)/parts) })
	}
	work(0, n/parts)
	others.Wait()
}
