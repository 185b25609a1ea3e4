package fabric

import (
	"errors"
	"slices"
	"strings"
	"time"
)

// Config is how a map is made.
type Config struct {
	// Levels are the tree's, top first; see [Preset].
	Levels []Level
	// StaleAfter is the age from which a heartbeat makes a node Degraded; 0
	// means DefaultStaleAfter.
	StaleAfter time.Duration
}

// DefaultStaleAfter is five heartbeats of 60 s.
const DefaultStaleAfter = 5 * time.Minute

// maxSkew is how far ahead a worker's clock may be.
const maxSkew = time.Minute

// Map is the fabric as the reports show it. Put, Beat and Remove take what
// changed; Snapshot brings the tree up to date, at a cost that depends on what
// changed and not on the number of nodes. A Map is for one goroutine, its
// snapshots are for any.
type Map struct {
	levels     []Level
	staleAfter time.Duration
	now        time.Time

	nodes  map[string]*record
	leaves *cluster[*record]
	spines *cluster[*cell]
	cells  map[string]*cell
	// guids are the HCAs' nodes; doubles those of a GUID that several report.
	guids   map[uint64]*record
	doubles map[uint64][]*record
	// uplinks are the nodes that report a leaf's, by its ID.
	uplinks map[string][]*record
	alarms  alarms
	// turns counts the judgments of cells.
	turns uint64

	sockets sockets

	// branches are the groups by level and key.
	branches []map[string]*branch
	naming   []*naming
	root     *branch

	// What waits for the next Snapshot.
	dirtyNodes    []*record
	movedNodes    []*record
	dirtyCells    []*cell
	dirtyUplinks  []string
	dirtyBranches []*branch

	last *Snapshot
}

// New makes an empty map.
func New(c Config) (*Map, error) {
	if err := CheckLevels(c.Levels); err != nil {
		return nil, err
	}
	if c.StaleAfter < 0 {
		return nil, errors.New("staleAfter is negative")
	}
	if c.StaleAfter == 0 {
		c.StaleAfter = DefaultStaleAfter
	}
	m := &Map{
		levels: slices.Clone(c.Levels), staleAfter: c.StaleAfter,
		nodes:  map[string]*record{},
		leaves: newCluster[*record](), spines: newCluster[*cell](), cells: map[string]*cell{},
		guids: map[uint64]*record{}, doubles: map[uint64][]*record{}, uplinks: map[string][]*record{},
		root: &branch{level: -1},
	}
	for _, l := range m.levels {
		m.branches = append(m.branches, map[string]*branch{})
		m.naming = append(m.naming, &naming{kind: l.Kind, claims: map[string][]*branch{}, derived: map[string][]*branch{}})
	}
	return m, nil
}

// Reserve makes room for about that many nodes, before the first Put: a first
// tree is made faster, and leaves less garbage.
func (m *Map) Reserve(nodes int) {
	if len(m.nodes) > 0 || len(m.guids) > 0 {
		return
	}
	m.nodes, m.guids = make(map[string]*record, nodes), make(map[uint64]*record, usualPorts*nodes)
	m.alarms = slices.Grow(m.alarms, nodes)
	m.dirtyNodes, m.movedNodes = slices.Grow(m.dirtyNodes, nodes), slices.Grow(m.movedNodes, nodes)
	m.leaves.moved = slices.Grow(m.leaves.moved, nodes)
}

func (m *Map) nextTurn() uint64 {
	m.turns++
	return m.turns
}

// usualPorts is how many fabric ports a node has.
const usualPorts = 8

// Len is the number of nodes.
func (m *Map) Len() int { return len(m.nodes) }

// Put adds a node or replaces all that is known of it.
func (m *Map) Put(n Node) {
	r := m.nodes[n.Name]
	if r == nil {
		r = &record{name: n.Name, chain: make([]*branch, len(m.levels))}
		r.item.owner = r
		m.nodes[n.Name] = r
	}
	oldPorts, oldUps, oldUpLeaves, oldShape := r.ports, r.ups, r.upLeaves, r.shape
	if !slices.Equal(r.names, n.Names) {
		m.leave(r) // While the groups know by which names it came.
	}
	m.forget(r)
	r.read(&n, &m.sockets)
	m.learn(r)
	if !slices.EqualFunc(oldPorts, r.ports, samePlug) {
		m.leaves.set(&r.item, r.plug(m.leaves))
	}
	if r.cell != nil && (oldShape != r.shape || !slices.EqualFunc(oldPorts, r.ports, samePort)) {
		m.dirtyCell(r.cell)
	}
	if !slices.Equal(oldUpLeaves, r.upLeaves) || !slices.Equal(oldUps, r.ups) {
		m.dirtyUplinks = append(append(m.dirtyUplinks, oldUpLeaves...), r.upLeaves...)
	}
	m.move(r)
	m.dirty(r)
}

// Beat records a heartbeat.
func (m *Map) Beat(name string, at time.Time) {
	r := m.nodes[name]
	if r == nil || r.beat.Equal(at) {
		return
	}
	backward := at.Before(r.beat) || r.beat.IsZero()
	r.beat = at
	if backward || r.overdue || at.After(m.now.Add(maxSkew)) {
		m.dirty(r)
	}
}

// Remove takes a node away.
func (m *Map) Remove(name string) {
	r := m.nodes[name]
	if r == nil {
		return
	}
	delete(m.nodes, name)
	r.isGone = true
	m.dirtyUplinks = append(m.dirtyUplinks, r.upLeaves...)
	m.forget(r)
	r.ports = nil
	m.leaves.set(&r.item, nil)
	m.leave(r)
	if r.parent != nil {
		r.parent.replace(r.shown, nil)
		m.dirtyBranch(r.parent)
	}
	r.shown, r.parent = nil, nil
}

// forget and learn keep the indexes of what reports say.
func (m *Map) forget(r *record) {
	for i := range r.ports {
		m.unclaim(r.ports[i].guid, r)
	}
	for _, leaf := range r.upLeaves {
		rest := slices.DeleteFunc(m.uplinks[leaf], func(o *record) bool { return o == r })
		if len(rest) == 0 {
			delete(m.uplinks, leaf)
		} else {
			m.uplinks[leaf] = rest
		}
	}
}

func (m *Map) learn(r *record) {
	for i := range r.ports {
		m.claim(r.ports[i].guid, r)
	}
	for _, leaf := range r.upLeaves {
		all := m.uplinks[leaf]
		if i, found := slices.BinarySearchFunc(all, r.name, compareName); !found {
			m.uplinks[leaf] = slices.Insert(all, i, r)
		}
	}
}

// claim notes that a node reports an HCA's GUID.
func (m *Map) claim(guid uint64, r *record) {
	if guid == 0 {
		return
	}
	first := m.guids[guid]
	if first == nil {
		m.guids[guid] = r
	}
	if first == nil || first == r {
		return
	}
	all := m.doubles[guid]
	if all == nil {
		all = []*record{first}
	}
	if i, found := slices.BinarySearchFunc(all, r.name, compareName); !found {
		all = slices.Insert(all, i, r)
		m.doubles[guid] = all
		m.disturb(all, i)
	}
}

func (m *Map) unclaim(guid uint64, r *record) {
	all := m.doubles[guid]
	if all == nil {
		if m.guids[guid] == r {
			delete(m.guids, guid)
		}
		return
	}
	i, found := slices.BinarySearchFunc(all, r.name, compareName)
	if !found {
		return
	}
	m.disturb(all, i)
	all = slices.Delete(all, i, i+1)
	m.doubles[guid], m.guids[guid] = all, all[0]
	if len(all) == 1 {
		delete(m.doubles, guid)
	}
}

// disturb marks those whose finding names another node when the i-th comes or
// goes: each names the first other.
func (m *Map) disturb(all []*record, i int) {
	if i < 2 {
		m.dirty(all...)
	}
}

func compareName(r *record, name string) int { return strings.Compare(r.name, name) }

// dirty are nodes whose element may change, moved those whose groups may.
func (m *Map) dirty(all ...*record) {
	for _, r := range all {
		if !r.isDirty {
			r.isDirty = true
			m.dirtyNodes = append(m.dirtyNodes, r)
		}
	}
}

func (m *Map) move(r *record) {
	if !r.isMoved {
		r.isMoved = true
		m.movedNodes = append(m.movedNodes, r)
	}
}

func (m *Map) dirtyCell(c *cell) {
	if c != nil && !c.isDirty {
		c.isDirty = true
		m.dirtyCells = append(m.dirtyCells, c)
	}
}

func (m *Map) dirtyBranch(b *branch) {
	if b != nil && !b.isDirty {
		b.isDirty = true
		m.dirtyBranches = append(m.dirtyBranches, b)
	}
}
