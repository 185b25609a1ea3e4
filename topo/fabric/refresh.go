package fabric

import (
	"slices"
	"time"
)

// refresh brings everything up to date with what was put and removed.
func (m *Map) refresh(now time.Time) {
	if now.After(m.now) {
		m.now = now
	}
	m.ring()
	m.settleLeaves()
	m.judge()
	m.settleSpines()
	m.regroup()
	m.rename()
	m.showNodes()
	m.showBranches()
}

// settleLeaves moves nodes between cells.
func (m *Map) settleLeaves() {
	done := m.leaves.settle()
	for _, moved := range done.moved {
		r := moved.item.owner
		if moved.was != moved.item.key || r.cell == nil && moved.item.key != "" {
			m.place(r, moved.item.key)
		}
		m.dirtyCell(r.cell)
	}
	for _, key := range done.claims {
		m.dirtyCell(m.cells[key])
	}
	for _, leaf := range m.dirtyUplinks {
		if f := m.leaves.features[leaf]; f != nil {
			for _, v := range f.claims.list {
				m.dirtyCell(m.cells[v.id])
			}
		}
	}
	m.dirtyUplinks = nil
}

// place puts a node into the cell with that key, "" for none.
func (m *Map) place(r *record, key string) {
	if c := r.cell; c != nil {
		i := slices.Index(c.members, r)
		last := len(c.members) - 1
		c.members[i] = c.members[last]
		c.members[last] = nil
		c.members = c.members[:last]
		m.dirtyCell(c)
	}
	r.cell, r.block = nil, ""
	if key != "" {
		c := m.cells[key]
		if c == nil {
			c = &cell{key: key, leafKey: string(keySwitch) + key}
			c.item.owner = c
			m.cells[key] = c
		}
		c.members = append(c.members, r)
		r.cell = c
		m.dirtyCell(c)
	}
	if !r.isGone {
		m.move(r)
		m.dirty(r)
	}
}

// judge looks again at the cells that changed.
func (m *Map) judge() {
	verdicts := make([]struct {
		was     []slot
		changed []*record
	}, len(m.dirtyCells))
	share(len(m.dirtyCells), func(worker, from, to int) {
		for i, c := range m.dirtyCells[from:to] {
			v := &verdicts[from+i]
			v.was = c.slots
			v.changed = c.judge(&m.judges[worker])
		}
	})
	block := slices.IndexFunc(m.levels, func(l Level) bool { return l.By == ByBlock })
	spine := slices.ContainsFunc(m.levels, func(l Level) bool { return l.By == BySpine })
	for i, c := range m.dirtyCells {
		c.isDirty = false
		if len(c.members) == 0 {
			m.spines.set(&c.item, nil)
			if m.cells[c.key] == c {
				delete(m.cells, c.key)
			}
			continue
		}
		m.dirty(verdicts[i].changed...)
		if spine {
			m.raise(c)
		}
		if block >= 0 {
			for _, r := range c.blocks(m.levels[block].Nodes) {
				m.move(r)
			}
		}
		if !slices.EqualFunc(verdicts[i].was, c.slots, sameExpectation) {
			for _, b := range c.shownBy {
				m.dirtyBranch(b)
			}
		}
	}
	m.dirtyCells = nil
}

// raise brings up to date to which spines a cell has cables.
func (m *Map) raise(c *cell) {
	ups := m.spinesOf(c)
	if slices.Equal(ups, c.ups) {
		return
	}
	c.ups = ups
	cables := make([]cable[*cell], len(ups))
	for i, id := range ups {
		cables[i].feature = m.spines.of(id)
	}
	m.spines.set(&c.item, cables)
}

func sameExpectation(a, b slot) bool {
	return a.rail == b.rail && a.plane == b.plane && a.expected == b.expected && a.name == b.name
}

// settleSpines moves cells between groups of spines.
func (m *Map) settleSpines() {
	for _, moved := range m.spines.settle().moved {
		if moved.was == moved.item.key {
			continue
		}
		moved.item.owner.spineKey = string(keySwitch) + moved.item.key
		for _, r := range moved.item.owner.members {
			m.move(r)
		}
	}
}

// regroup brings the moved nodes' groups up to date.
func (m *Map) regroup() {
	for _, r := range m.movedNodes {
		r.isMoved = false
		if r.isGone {
			continue
		}
		keys, sound := r.keys(m.levels)
		if r.badPath == sound {
			r.badPath = !sound
			m.dirty(r)
		}
		if !slices.EqualFunc(keys[:len(m.levels)], r.chain, hasKey) {
			m.leave(r)
			m.join(r, &keys)
		}
	}
	m.movedNodes = nil
}

// hasKey tells whether b is the group with that key, nil for none.
func hasKey(key string, b *branch) bool {
	if b == nil {
		return key == ""
	}
	return b.key == key
}

// join puts a node that is in no group into those with the keys.
func (m *Map) join(r *record, keys *keys) {
	for i := range r.chain {
		if key := keys[i]; key != "" {
			r.chain[i] = m.branch(i, key, r)
		}
	}
	for _, b := range r.chain {
		if b != nil {
			b.enter(r, 1, m.levels[b.level].Kind)
			m.dirtyBranch(b)
		}
	}
	m.dirty(r)
}

// branch is the group with that key, made if need be.
func (m *Map) branch(level int, key string, r *record) *branch {
	b := m.branches[level][key]
	if b == nil {
		b = &branch{level: level, key: key, above: make([]tally, level)}
		if m.levels[level].byPath() && level > 0 {
			b.list = map[*record]struct{}{}
		}
		m.branches[level][key] = b
		m.naming[level].enlist(b)
	}
	if m.levels[level].By == ByLeaf && key[0] == keySwitch && b.cell != r.cell {
		b.cell = r.cell
		r.cell.shownBy = append(slices.DeleteFunc(r.cell.shownBy, func(o *branch) bool { return o.members == 0 }), b)
	}
	return b
}

// leave takes a node out of its groups. The element stays shown for now.
func (m *Map) leave(r *record) {
	for _, b := range r.chain {
		if b != nil {
			b.enter(r, -1, m.levels[b.level].Kind)
			m.dirtyBranch(b)
		}
	}
	clear(r.chain)
	r.dissent = 0
}

// rename settles the names of the dirty groups and finds what holds them.
func (m *Map) rename() {
	for _, b := range m.dirtyBranches {
		if b.level < 0 {
			continue
		}
		if b.members == 0 {
			m.naming[b.level].strike(b)
			continue
		}
		m.naming[b.level].remember(b)
		m.dirty(b.contradict(m.above(b))...)
	}
	for _, n := range m.naming {
		for _, b := range n.settle() {
			m.dirtyBranch(b)
		}
	}
}

// nodeElements are those of the dirty nodes; nil for nodes that are gone.
func (m *Map) nodeElements() []*Element {
	elements := make([]*Element, len(m.dirtyNodes))
	share(len(m.dirtyNodes), func(_, from, to int) {
		for i, r := range m.dirtyNodes[from:to] {
			if !r.isGone {
				elements[from+i] = m.nodeElement(r)
			}
		}
	})
	return elements
}

// showNodes makes the elements of the dirty nodes and puts them where they
// belong.
func (m *Map) showNodes() {
	elements := m.nodeElements()
	for i, r := range m.dirtyNodes {
		r.isDirty = false
		if r.isGone {
			continue
		}
		if !r.look.IsZero() {
			m.alarm(r, r.look)
		}
		parent := m.root
		for _, b := range r.chain {
			if b != nil {
				parent = b
			}
		}
		shown := elements[i]
		if r.parent == parent && r.shown != nil && r.shown.same(shown) {
			continue
		}
		if r.parent != nil && r.parent != parent {
			r.parent.replace(r.shown, nil)
			m.dirtyBranch(r.parent)
			r.shown = nil
		}
		parent.replace(r.shown, shown)
		m.dirtyBranch(parent)
		r.shown, r.parent = shown, parent
	}
	m.dirtyNodes = nil
}

// showBranches makes the elements of the dirty groups, the lowest first.
func (m *Map) showBranches() {
	levels := make([][]*branch, len(m.levels))
	queue := func(all []*branch) {
		for _, b := range all {
			if b.level >= 0 {
				levels[b.level] = append(levels[b.level], b)
			}
		}
	}
	queue(m.dirtyBranches)
	for i := range slices.Backward(levels) {
		for _, b := range levels[i] { // The lists of levels above grow meanwhile.
			before := len(m.dirtyBranches)
			m.show(b)
			queue(m.dirtyBranches[before:])
		}
	}
	for _, b := range m.dirtyBranches {
		b.isDirty = false
	}
	m.dirtyBranches = nil
	m.root.kids.apply()
}

// show makes a group's element anew and hands it to what holds the group.
func (m *Map) show(b *branch) {
	shown, parent := b.build(m.levels[b.level].Kind), m.root
	if b.members == 0 {
		if m.branches[b.level][b.key] == b {
			delete(m.branches[b.level], b.key)
		}
		shown = nil
	} else {
		parent = m.above(b)
	}
	if b.parent != nil && b.parent != parent {
		b.parent.replace(b.shown, nil)
		m.dirtyBranch(b.parent)
		b.shown = nil
	}
	if b.shown != nil || shown != nil {
		parent.replace(b.shown, shown)
		m.dirtyBranch(parent)
	}
	b.shown, b.parent = shown, parent
}
