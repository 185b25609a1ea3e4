package fabric

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// StaleAfter is the age from which a heartbeat makes a node Degraded: three heartbeats.
const StaleAfter = 3 * v1alpha1.HeartbeatInterval

// Node holds the known facts about one node.
type Node struct {
	Name string
	// Ready is whether the Node's condition Ready is True; Since is when that condition last changed.
	Ready bool
	Since time.Time
	// Names are the values of the node's topology labels: the groups of any kind that it was in. They keep names
	// stable.
	Names []string
	// Report is the node's NodeTopology, or nil.
	Report *Report
	// Heartbeat is when the worker last ended a pass; zero if unknown.
	Heartbeat time.Time
}

// Builder builds the tree. Put, Heartbeat and Remove take what changed, and Snapshot computes the tree again from all
// reports. It reuses what follows from one report, the check of a leaf group that is as it was, and equal elements. A
// Builder is for one goroutine, its snapshots are for any.
type Builder struct {
	levels []Level
	// now is the time at which heartbeats are judged.
	now time.Time

	order   []*node // By name.
	symbols symbols
	room    int     // The number of symbols at which to compact them.
	none    *Report // Of nodes without a report.

	// recabled is set if the survey is out of date, changed if the tree is.
	recabled, changed bool
	survey            *survey
	tree              *tree
	snapshot          *Snapshot
}

// node has the facts about a node, what follows from them alone, and its place in the last survey and tree.
type node struct {
	Node
	// The passes over all nodes read these in place of the report and its links, which lie elsewhere in memory: the
	// number of the node's ends and its NVLink domain.
	ends   int32
	nvlink string
	links  *links
	// path are the names that its path gives it, nil for none; badPath is set if the path makes no sense.
	path    *names
	badPath bool
	alien   bool // Its NVLink domain is of others.
	// print is another one after each change of what the node's element follows from.
	print uint64

	torn bool // Between groups: its cables accuse nobody.
	// group is the leaf group or nil, and index the node's number in it; class is its place in the tree.
	group *leafGroup
	index int
	class *class
	// waits is when a finding makes it Degraded, zero without one that waits.
	waits time.Time
	// beat is the fault of its heartbeat, shown its last element.
	beat  Reason
	shown *Element
	cause cause
}

// newPrint returns another number each time: sums of prints are equal if all of them are, and else by chance of one in
// 2^64.
func newPrint() uint64 { return rand.Uint64() } //nolint:gosec // Not a secret.

// New makes a builder without nodes, of a tree with these levels, top first; see [Preset].
func New(levels []Level) *Builder {
	return &Builder{
		levels: slices.Clone(levels), room: spare, symbols: newSymbols(), none: &Report{},
		survey: &survey{votes: &grouping{}}, tree: &tree{}, recabled: true,
	}
}

// Put adds nodes or replaces all that is known of them; of two with one name the last counts.
func (b *Builder) Put(nodes ...Node) {
	for _, now := range nodes {
		i, found := find(b.order, now.Name)
		if !found {
			b.order = slices.Insert(b.order, i, &node{Node: Node{Name: now.Name}})
		}
		n := b.order[i]
		if now.Report == nil {
			now.Report, now.Heartbeat = b.none, time.Time{}
		}
		if n.Report != now.Report {
			if n.Report != nil { // It is not new.
				b.symbols.enter(n, -1)
			}
			n.Report = now.Report
			b.read(n)
			b.recabled = true
		}
		invalid := func(name string) bool { return wellknown.CheckValue(name) != nil }
		if slices.ContainsFunc(now.Names, invalid) {
			now.Names = slices.DeleteFunc(slices.Clone(now.Names), invalid)
		}
		b.recabled = b.recabled || !slices.Equal(n.Names, now.Names)
		n.Node, n.print, b.changed = now, newPrint(), true
	}
}

// read reads a node's report, and counts the node.
func (b *Builder) read(n *node) {
	n.links, n.nvlink = b.symbols.links(n.Report), n.Report.Rest.NVLinkDomain
	n.ends = n.links.ends.number
	path, bad := pathNames(b.levels, n.Report.Rest.Path)
	n.path, n.badPath = b.symbols.path(path), bad
	b.symbols.enter(n, 1)
}

// Heartbeat records a heartbeat of a node with a report.
func (b *Builder) Heartbeat(name string, at time.Time) {
	if i, found := find(b.order, name); found && b.order[i].Report != b.none {
		b.order[i].Heartbeat = at
	}
}

// Remove takes a node away.
func (b *Builder) Remove(name string) {
	if i, found := find(b.order, name); found {
		b.symbols.enter(b.order[i], -1)
		b.order, b.recabled = slices.Delete(b.order, i, i+1), true
	}
}

// Snapshot brings the tree up to date and returns it. now decides which heartbeats are too old. Without any change the
// same snapshot comes back.
func (b *Builder) Snapshot(now time.Time) *Snapshot {
	if now.After(b.now) {
		b.now = now
	}
	for _, n := range b.order {
		beat, settled := b.heartbeat(n), !n.waits.IsZero() && !b.now.Before(n.waits)
		if beat != n.beat || settled {
			n.beat, n.print, b.changed = beat, newPrint(), true
		}
	}
	if b.recabled {
		b.compact()
		b.survey = newSurvey(b.order, &b.symbols, b.levels, b.survey)
	}
	if b.recabled || b.changed {
		b.build()
	}
	b.recabled, b.changed = false, false
	return b.snapshot
}

// build makes the tree of all nodes.
func (b *Builder) build() {
	t := newTree(b.levels, b.order)
	t.rename(b.tree, b.symbols.ids)
	parallel(len(b.order), func(from, to int32) {
		for _, n := range b.order[from:to] {
			n.show(&b.symbols, b.now)
		}
	})
	crossing := t.compose(b.tree)
	b.snapshot = b.snapshot.next(t.root.shows(nil), crossing)
	b.tree = t
}

// spare is the number of unused symbols to keep.
const spare = 1 << 16

// compact numbers all switches again once most numbers may be out of use: false reports cannot fill the memory.
func (b *Builder) compact() {
	if b.symbols.size() < b.room {
		return
	}
	b.symbols = newSymbols()
	for _, n := range b.order {
		b.read(n)
	}
	b.room = 2*b.symbols.size() + spare
	b.survey = &survey{votes: &grouping{}}
}
