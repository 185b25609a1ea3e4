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
	spare  []record
	leaves *cluster[*record]
	spines *cluster[*cell]
	cells  map[string]*cell
	// guids are the HCAs' nodes; doubles those of a GUID that several report.
	guids   owners
	doubles map[uint64][]*record
	// uplinks are the nodes that report a leaf's, by its ID.
	uplinks map[string][]*record
	alarms  alarms
	models  models
	// judges are one for each that shares the work.
	judges [workers]judge

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
		doubles: map[uint64][]*record{}, uplinks: map[string][]*record{},
		root: &branch{level: -1},
	}
	for worker := range m.judges {
		m.judges[worker].worker = worker
	}
	for _, l := range m.levels {
		m.branches = append(m.branches, map[string]*branch{})
		m.naming = append(m.naming, &naming{kind: l.Kind, claims: map[string][]*branch{}, derived: map[string][]*branch{}})
	}
	return m, nil
}

// Reserve makes room for about that many nodes in an empty map: a first tree is
// made faster, and leaves less garbage.
func (m *Map) Reserve(nodes int) {
	if len(m.nodes) > 0 {
		return
	}
	m.nodes = make(map[string]*record, nodes)
	m.guids.reserve(usualPorts * nodes)
	m.alarms = slices.Grow(m.alarms, nodes)
	m.dirtyNodes, m.movedNodes = slices.Grow(m.dirtyNodes, nodes), slices.Grow(m.movedNodes, nodes)
	m.leaves.moved = slices.Grow(m.leaves.moved, nodes)
}

// usualPorts is how many fabric ports a node has.
const usualPorts = 8

// Len is the number of nodes.
func (m *Map) Len() int { return len(m.nodes) }

// Put adds nodes or replaces all that is known of them; of two with one name
// the last counts. Of many at once, as for a first tree, the next are read while
// the last are put.
func (m *Map) Put(nodes ...Node) {
	if len(nodes) <= batch {
		for i := range nodes {
			m.put(nodes[i].Name, nodes[i].read(&m.models))
		}
		return
	}
	batches := make(chan []reading)
	go func() {
		defer close(batches)
		for part := range slices.Chunk(nodes, batch) {
			readings := make([]reading, len(part))
			for i := range part {
				readings[i] = part[i].read(&m.models)
			}
			batches <- readings
		}
	}()
	at := 0
	for readings := range batches {
		for _, r := range readings {
			m.put(nodes[at].Name, r)
			at++
		}
	}
}

// batch is how many nodes are read in one go.
const batch = 256

// put takes over what was read of a node.
func (m *Map) put(name string, now reading) {
	r := m.nodes[name]
	if r == nil {
		r = m.record(name)
	}
	was := r.reading
	if !slices.Equal(was.names, now.names) {
		m.leave(r) // While the groups know by which names it came.
	}
	m.forget(r)
	r.reading = now
	m.learn(r)
	if !slices.EqualFunc(was.ports, r.ports, samePlug) {
		m.leaves.set(&r.item, r.plug(m.leaves))
	}
	if r.cell != nil && (was.shape != r.shape || !slices.EqualFunc(was.ports, r.ports, samePort)) {
		m.dirtyCell(r.cell)
	}
	if !slices.Equal(was.upLeaves, r.upLeaves) || !slices.Equal(was.ups, r.ups) {
		m.dirtyUplinks = append(append(m.dirtyUplinks, was.upLeaves...), r.upLeaves...)
	}
	m.move(r)
	m.dirty(r)
}

// record makes room for a node. Those of the first tree are made many at a
// time: most stay as long as the map.
func (m *Map) record(name string) *record {
	const many = 64
	if len(m.spare) == 0 {
		n := 1
		if m.last == nil {
			n = many
		}
		m.spare = make([]record, n)
		chains := make([]*branch, n*len(m.levels))
		for i := range m.spare {
			m.spare[i].chain = chains[i*len(m.levels) : (i+1)*len(m.levels) : (i+1)*len(m.levels)]
		}
	}
	r := &m.spare[0]
	m.spare = m.spare[1:]
	r.name, r.item.owner = name, r
	m.nodes[name] = r
	return r
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
	first := m.guids.claim(guid, r)
	if first == r {
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
		m.guids.release(guid, r)
		return
	}
	i, found := slices.BinarySearchFunc(all, r.name, compareName)
	if !found {
		return
	}
	m.disturb(all, i)
	all = slices.Delete(all, i, i+1)
	m.doubles[guid] = all
	m.guids.give(guid, all[0])
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
