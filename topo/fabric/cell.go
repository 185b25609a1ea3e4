package fabric

import (
	"slices"
	"strconv"
)

// cell is a leaf group: the nodes with one outcome of vote 4. It exists in
// every mode, because cables are judged by it.
type cell struct {
	key     string
	members []*record
	slots   []slot
	// own are the leaves of the cell, with the cables that end there.
	own tally
	// item stands for the cell among the spines, which are ups.
	item *item[*cell]
	ups  []string
	// shownBy are the groups that show the cell's expectations.
	shownBy []*branch

	isDirty bool
}

// slot is one rail and plane of a cell.
type slot struct {
	rail, plane int32
	// found are the leaves at the members' ports, total the ports with a leaf.
	found tally
	total int32
	// expected is the leaf that the cell expects, agree the ports on it.
	expected, name string
	agree          int32
	names          tally
}

// maxRail and maxPlane bound the numbers that a report can use.
const maxRail, maxPlane = 128, 16

// slotIndex finds a slot by rail and plane; 0 is none.
type slotIndex [maxRail * maxPlane]uint16

func (x *slotIndex) at(rail, plane int32) *uint16 { return &x[hintOf(rail, plane)] }

// judge recomputes what the cell expects of its cables, and then what is wrong
// with those of its members. It returns the members for whom that changed.
func (c *cell) judge(leaves *cluster[*record]) []*record {
	var index slotIndex
	known := c.count(leaves, &index)
	wired := c.expect(known, &index)
	shapes := c.shapes(&index)
	var changed []*record
	for _, r := range c.members {
		v := verdict{cell: c, record: r, index: &index, leaves: known, wired: wired, shape: shapes[r.shape]}
		bad := v.findings()
		if !sameFindings(bad, r.bad) {
			r.bad = bad
			changed = append(changed, r)
		}
	}
	return changed
}

// standing is what a leaf is to a cell: foreign, and from which rail and plane
// more than half of its cables come, or noHint.
type standing struct {
	foreign bool
	usual   int32
}

// fits tells whether a group could expect the leaf at a slot.
func (l standing) fits(s *slot) bool {
	return !l.foreign && (l.usual == noHint || l.usual == s.hint())
}

func (s *slot) hint() int32 { return hintOf(s.rail, s.plane) }

func hintOf(rail, plane int32) int32 { return rail*maxPlane + plane }

// count fills the slots and the cell's own leaves, and tells what its leaves
// are to it.
func (c *cell) count(leaves *cluster[*record], index *slotIndex) map[string]standing {
	c.slots, c.own = nil, tally{}
	known := map[string]standing{}
	for _, r := range c.members {
		for i := range r.ports {
			p := &r.ports[i]
			at := index.at(p.rail, p.plane)
			if *at == 0 {
				c.slots = append(c.slots, slot{rail: p.rail, plane: p.plane})
				*at = uint16(len(c.slots)) //nolint:gosec // At most maxRail * maxPlane.
			}
			if p.leaf == "" {
				continue
			}
			s := &c.slots[*at-1]
			s.total++
			s.found.add(p.leaf, 1)
			l, is := known[p.leaf]
			if !is {
				if f := leaves.features[p.leaf]; f != nil {
					l = standing{f.claims.foreign(c.key), f.usual}
				}
				known[p.leaf] = l
			}
			if !l.foreign {
				c.own.add(p.leaf, 1)
			}
		}
	}
	slices.SortFunc(c.slots, func(a, b slot) int {
		return int(a.hint() - b.hint())
	})
	for i := range c.slots {
		*index.at(c.slots[i].rail, c.slots[i].plane) = uint16(i + 1) //nolint:gosec // As above.
	}
	return known
}

// expect decides which leaf is right at each slot, and whether the cell is
// wired by rail.
func (c *cell) expect(known map[string]standing, index *slotIndex) bool {
	agree, total := int32(0), int32(0)
	for i := range c.slots {
		s := &c.slots[i]
		for _, v := range s.found.list {
			l := known[v.id]
			if l.fits(s) && c.prefers(v, s) {
				s.expected, s.agree = v.id, v.n
			}
			if !l.foreign {
				total += v.n
			}
		}
		agree += s.agree
	}
	for _, r := range c.members {
		for i := range r.ports {
			p := &r.ports[i]
			if s := &c.slots[*index.at(p.rail, p.plane)-1]; p.leafName != "" && p.leaf == s.expected {
				s.names.add(p.leafName, 1)
			}
		}
	}
	for i := range c.slots {
		c.slots[i].name = c.slots[i].names.most()
	}
	return 4*agree >= 3*total
}

// prefers tells whether v is a better expectation than what s has: more of
// its ports, more of the cell's, the lesser ID.
func (c *cell) prefers(v votes, s *slot) bool {
	if v.n != s.agree {
		return v.n > s.agree
	}
	if x, y := c.own.count(v.id), c.own.count(s.expected); x != y {
		return x > y
	}
	return v.id < s.expected
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
			at := int(*index.at(r.ports[i].rail, r.ports[i].plane)) - 1
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
