package fabric

import (
	"slices"
	"strconv"
)

// cell is a leaf group: the nodes with one outcome of vote 4. It exists in
// every mode, because cables are judged by it.
type cell struct {
	key string
	// leafKey and spineKey are the keys of the groups that show the cell and
	// the cells that share spines.
	leafKey, spineKey string

	members []*record
	slots   []slot
	// own are the leaves of the cell, with the cables that end there.
	own tally
	// item stands for the cell among the spines, which are ups.
	item item[*cell]
	ups  []string
	// shownBy are the groups that show the cell's expectations.
	shownBy []*branch

	isDirty bool
}

// slot is one rail and plane of a cell.
type slot struct {
	rail, plane int32
	// found are the leaves at the members' ports.
	found []landing
	// expected is the leaf that the cell expects, agree the ports on it.
	expected, name string
	agree          int32
	names          tally
}

// landing is a leaf and how many of a slot's ports are on it.
type landing struct {
	leaf *feature[*record]
	n    int32
}

// maxRail and maxPlane bound the numbers that a report can use.
const maxRail, maxPlane = 128, 16

// slotIndex finds a slot by rail and plane; 0 is none.
type slotIndex [maxRail * maxPlane]uint16

// judge is one of several who judge cells at the same time. Cells share leaves,
// so every judge has notes of its own on each.
type judge struct {
	worker int
	// turn tells the cells apart that it judges.
	turn  uint64
	index slotIndex
}

// on is what a leaf is to the cell whose turn it is.
func (j *judge) on(f *feature[*record]) *standing { return &f.standings[j.worker] }

// judge recomputes what the cell expects of its cables, and then what is wrong
// with those of its members. It returns the members for whom that changed.
func (c *cell) judge(j *judge) []*record {
	j.turn++
	clear(j.index[:])
	c.count(j)
	wired := c.expect(j)
	shapes := c.shapes(&j.index)
	var changed []*record
	for _, r := range c.members {
		v := verdict{cell: c, record: r, judge: j, wired: wired, shape: shapes[r.shape]}
		bad := v.findings()
		if !sameFindings(bad, r.bad) {
			r.bad = bad
			changed = append(changed, r)
		}
	}
	return changed
}

// standing is what a leaf is to the cell that one judge looks at.
type standing struct {
	turn    uint64
	foreign bool
	// at is where a slot's landings have it, most often; fresh if in none.
	at int32
}

const fresh = -1

// fits tells whether a group could expect the leaf at a slot: it is not
// foreign, and no other rail is the usual one there.
func (j *judge) fits(f *feature[*record], s *slot) bool {
	return !j.on(f).foreign && (f.usual == noHint || f.usual == s.hint())
}

// land counts a port on a leaf.
func (j *judge) land(s *slot, f *feature[*record]) {
	at := -1
	if j.on(f).at != fresh {
		at = j.find(s, f)
	}
	if at < 0 {
		at = len(s.found)
		s.found = append(s.found, landing{leaf: f})
	}
	s.found[at].n++
	j.on(f).at = int32(at)
}

// landed is how many of the slot's ports are on a leaf.
func (j *judge) landed(s *slot, f *feature[*record]) int32 {
	if at := j.find(s, f); at >= 0 {
		return s.found[at].n
	}
	return 0
}

func (j *judge) find(s *slot, f *feature[*record]) int {
	if at := int(j.on(f).at); at < len(s.found) && s.found[at].leaf == f {
		return at
	}
	return slices.IndexFunc(s.found, func(l landing) bool { return l.leaf == f })
}

func (s *slot) hint() int32 { return hintOf(s.rail, s.plane) }

func hintOf(rail, plane int32) int32 { return rail*maxPlane + plane }

// count fills the slots and the cell's own leaves, and tells what its leaves
// are to it.
func (c *cell) count(j *judge) {
	c.slots, c.own = nil, tally{}
	for _, r := range c.members {
		plugged := 0 // The item's cables are the ports with a leaf, in order.
		for i := range r.ports {
			p := &r.ports[i]
			at := &j.index[p.hint()]
			if *at == 0 {
				c.slots = append(c.slots, slot{rail: p.rail, plane: p.plane})
				*at = uint16(len(c.slots)) //nolint:gosec // At most maxRail * maxPlane.
			}
			if p.leaf == "" {
				continue
			}
			f := r.item.cables[plugged].feature
			plugged++
			if s := j.on(f); s.turn != j.turn {
				*s = standing{turn: j.turn, foreign: f.claims.foreign(c.key), at: fresh}
			}
			j.land(&c.slots[*at-1], f)
			if !j.on(f).foreign {
				c.own.add(p.leaf, 1)
			}
		}
	}
	slices.SortFunc(c.slots, func(a, b slot) int {
		return int(a.hint() - b.hint())
	})
	for i := range c.slots {
		j.index[c.slots[i].hint()] = uint16(i + 1)
	}
}

// expect decides which leaf is right at each slot, and whether the cell is
// wired by rail.
func (c *cell) expect(j *judge) bool {
	agree, total := int32(0), int32(0)
	for i := range c.slots {
		s := &c.slots[i]
		for _, l := range s.found {
			if j.fits(l.leaf, s) && c.prefers(l, s) {
				s.expected, s.agree = l.leaf.id, l.n
			}
			if !j.on(l.leaf).foreign {
				total += l.n
			}
		}
		agree += s.agree
	}
	for _, r := range c.members {
		for i := range r.ports {
			p := &r.ports[i]
			if s := &c.slots[j.index[p.hint()]-1]; p.leaf != "" && p.leaf == s.expected && p.far.Name != "" {
				s.names.add(p.far.Name, 1)
			}
		}
	}
	for i := range c.slots {
		c.slots[i].name = c.slots[i].names.most()
	}
	return 4*agree >= 3*total
}

// prefers tells whether l is a better expectation than what s has: more of
// its ports, more of the cell's, the lesser ID.
func (c *cell) prefers(l landing, s *slot) bool {
	if l.n != s.agree {
		return l.n > s.agree
	}
	if x, y := c.own.count(l.leaf.id), c.own.count(s.expected); x != y {
		return x > y
	}
	return l.leaf.id < s.expected
}

// shape is which slots most nodes of equal hardware have.
type shape struct {
	nodes int
	have  []int
}

func (s *shape) has(slot int) bool { return 2*s.have[slot] > s.nodes }

func (c *cell) shapes(index *slotIndex) map[string]*shape {
	out := map[string]*shape{}
	for _, r := range c.members {
		s := out[r.shape]
		if s == nil {
			s = &shape{have: make([]int, len(c.slots))}
			out[r.shape] = s
		}
		s.nodes++
		last := -1
		for i := range r.ports { // Sorted: the ports of one slot are neighbors.
			at := int(index[r.ports[i].hint()]) - 1
			if at != last {
				s.have[at]++
			}
			last = at
		}
	}
	return out
}

// blocks cuts a cell of more than n nodes into blocks of neighboring switch
// ports. It returns the members whose block changed.
func (c *cell) blocks(n int) []*record {
	width := tally{}
	for i := range c.slots {
		if c.slots[i].expected != "" {
			width.add(c.slots[i].expected, 1)
		}
	}
	var changed []*record
	for _, r := range c.members {
		block := ""
		if len(c.members) > n {
			block = r.blockOf(c, &width, n)
		}
		if block != r.block {
			r.block = block
			changed = append(changed, r)
		}
	}
	return changed
}

// blockOf is the block that most of the node's switch ports belong to: width
// ports of a leaf make a node, n nodes a block.
func (r *record) blockOf(c *cell, width *tally, n int) string {
	var t tally
	for i := range r.ports {
		p := &r.ports[i]
		number := lastNumber(p.leafPort)
		if number < 1 || c.own.count(p.leaf) == 0 {
			continue
		}
		ports := int(max(width.count(p.leaf), 1)) * n
		t.add(strconv.Itoa((number-1)/ports), 1)
	}
	return t.most()
}

// lastNumber is the last number in a switch port's name, 0 if it has none:
// 12 of swp12, 5 of Ethernet1/5.
func lastNumber(s string) int {
	end := len(s)
	for end > 0 && (s[end-1] < '0' || s[end-1] > '9') {
		end--
	}
	start := end
	for start > 0 && s[start-1] >= '0' && s[start-1] <= '9' {
		start--
	}
	n, err := strconv.Atoi(s[start:end])
	if err != nil || n > 1<<20 {
		return 0
	}
	return n
}
