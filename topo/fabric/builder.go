package fabric

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Config configures a Builder.
type Config struct {
	// Levels are the tree's, top first; see [Preset].
	Levels []Level
	// StaleAfter is the age from which a heartbeat makes a node Degraded; 0
	// means DefaultStaleAfter.
	StaleAfter time.Duration
}

// DefaultStaleAfter is three heartbeats.
const DefaultStaleAfter = 3 * v1alpha1.HeartbeatInterval

// Node holds the known facts about one node.
type Node struct {
	Name string
	// Ready is whether the Node's condition Ready is True; Since is when that
	// condition last changed.
	Ready bool
	Since time.Time
	// Names are the values of the node's topology labels: the groups of any
	// kind that it was in. They keep names stable.
	Names []string
	// Report is the node's NodeTopology, or nil.
	Report *Report
	// Heartbeat is when the worker last ended a pass; zero if unknown.
	Heartbeat time.Time
}

// Builder builds the tree. Put, Heartbeat and Remove take what changed, and
// Snapshot computes the tree again from all reports. It reuses what follows from one
// report, the check of a leaf group that is as it was, and equal elements. A Builder is
// for one goroutine, its snapshots are for any.
type Builder struct {
	levels []Level
	at     moment
	// due is when the first heartbeat may become too old, zero for never.
	due time.Time

	nodes   map[string]*node
	order   []*node // By name.
	symbols symbols

	// recabled is set if the survey is out of date, changed if the tree is.
	recabled, changed bool
	survey            *survey
	tree              *tree
	snapshot          *Snapshot
}

// node has the facts about a node, and what follows from them alone.
type node struct {
	Node
	links *links
	// path are the names that its path gives it by level, nil for none; badPath is set if
	// the path makes no sense.
	path    []string
	badPath bool
	nvlink  string
	// print is another one after each Put.
	print uint64
	// beat is the fault of its heartbeat, shown its last element.
	beat  Reason
	shown *Element
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
		levels: slices.Clone(c.Levels), at: moment{staleAfter: c.StaleAfter}, nodes: map[string]*node{},
		symbols: newSymbols(), survey: &survey{votes: &grouping{}}, tree: &tree{}, recabled: true,
	}, nil
}

// Put adds nodes or replaces all that is known of them; of two with one name
// the last counts.
func (b *Builder) Put(nodes ...Node) {
	for i := range nodes {
		b.put(&nodes[i])
	}
	b.changed = b.changed || len(nodes) > 0
}

func (b *Builder) put(now *Node) {
	n := b.nodes[now.Name]
	if n == nil {
		n = &node{Node: Node{Name: now.Name}, links: b.symbols.links(nil)}
		b.nodes[now.Name] = n
		b.order = slices.Insert(b.order, b.find(n), n)
		b.recabled = true
	}
	if n.Report != now.Report {
		b.symbols.own(n.links, -1)
		n.links = b.symbols.links(now.Report)
		b.symbols.own(n.links, 1)
		n.path, n.badPath = pathNames(b.levels, now.Report.path())
		n.nvlink = now.Report.nvlinkDomain()
		b.recabled = true
	}
	n.Node, n.print = *now, b.symbols.print()
	invalid := func(name string) bool { return wellknown.CheckValue(name) != nil }
	if slices.ContainsFunc(n.Names, invalid) {
		n.Names = slices.DeleteFunc(slices.Clone(n.Names), invalid)
	}
}

// find returns the index of a node in the order of names, or the index at which to insert it.
func (b *Builder) find(n *node) int {
	i, _ := slices.BinarySearchFunc(b.order, n, func(a, b *node) int { return strings.Compare(a.Name, b.Name) })
	return i
}

// Heartbeat records a heartbeat of a node.
func (b *Builder) Heartbeat(name string, at time.Time) {
	n := b.nodes[name]
	if n == nil || n.Heartbeat.Equal(at) {
		return
	}
	n.Heartbeat = at
	reason, next := b.at.heartbeat(n)
	b.changed = b.changed || reason != n.beat
	b.wait(next)
}

// wait makes Snapshot look at the heartbeats at that time, zero for never.
func (b *Builder) wait(until time.Time) {
	if !until.IsZero() && (b.due.IsZero() || until.Before(b.due)) {
		b.due = until
	}
}

// Remove takes a node away.
func (b *Builder) Remove(name string) {
	n := b.nodes[name]
	if n == nil {
		return
	}
	delete(b.nodes, name)
	i := b.find(n)
	b.order = slices.Delete(b.order, i, i+1)
	b.symbols.own(n.links, -1)
	b.recabled = true
}

// Snapshot brings the tree up to date and returns it. now decides which
// heartbeats are too old. Without any change the same snapshot comes back.
func (b *Builder) Snapshot(now time.Time) *Snapshot {
	if now.After(b.at.now) {
		b.at.now = now
	}
	if b.recabled {
		b.compact()
		b.survey = newSurvey(b.order, &b.symbols, b.levels, b.survey)
	}
	if b.recabled || b.changed || !b.due.IsZero() && !b.at.now.Before(b.due) {
		b.build()
	}
	b.recabled, b.changed = false, false
	return b.snapshot
}

// build makes the tree of all nodes.
func (b *Builder) build() {
	t := newTree(b.levels, b.order, b.survey)
	t.rename(b.tree, b.symbols.ids)
	b.due = time.Time{}
	for _, n := range b.order {
		var next time.Time
		n.beat, next = b.at.heartbeat(n)
		b.wait(next)
	}
	duplicates := b.symbols.duplicates(b.order)
	parallel(len(t.spots), func(from, to int32) {
		for i := range t.spots[from:to] {
			p := &t.spots[from:to][i]
			p.shown = p.element(duplicates, b.symbols.ids)
		}
	})
	crossing := t.compose(b.tree)
	b.snapshot = b.snapshot.next(t.root.shows(), crossing)
	t.forget()
	b.tree = t
}

// spare is the number of unused symbols to keep.
const spare = 1 << 14

// compact numbers all switches again once most numbers may be out of use: false
// reports cannot fill the memory.
func (b *Builder) compact() {
	s := &b.symbols
	size := s.size()
	if s.used == 0 {
		s.used = size
	}
	if size < 2*s.used+spare {
		return
	}
	b.symbols = newSymbols()
	for _, n := range b.order {
		n.links = b.symbols.links(n.Report)
		b.symbols.own(n.links, 1)
	}
	b.symbols.used = b.symbols.size()
	b.survey = &survey{votes: &grouping{}}
}
