package fabric

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// branch is a group that changes; its Elements do not.
type branch struct {
	level int
	// key is the group's identity: the sort of evidence and its value.
	key     string
	parent  *branch
	members int32
	// list are the members, for levels by path only: it takes one to find
	// those who contradict the others.
	list map[*record]struct{}
	// above are the members' groups at the levels above, by key.
	above []tally
	// memory is what the members remember of its name.
	memory         tally
	claimed, name  string
	contradictions bool

	kids  kids
	shown *Element
	// changed tells a snapshot that there are other children.
	changed bool
	// cell is what a group by leaf shows.
	cell *cell

	isDirty bool
}

// The first bytes of keys.
const (
	keyPath   = 'p'
	keyNVLink = 'n'
	keySwitch = 's'
	keyBlock  = 'b'
)

// keys are the node's groups by level, "" where it has none, and whether its
// path made sense.
func (r *record) keys(levels []Level) (out keys, sound bool) {
	out, sound = pathNames(levels, r.path)
	pathed := out != (keys{})
	for i, l := range levels {
		switch {
		case out[i] != "":
			out[i] = string(keyPath) + out[i]
		case l.Otherwise && pathed:
		case l.By == ByNVLink || l.By == ByBlock && r.nvlink != "":
			if r.nvlink != "" {
				out[i] = string(keyNVLink) + r.nvlink
			}
		case r.cell == nil:
		case l.By == ByLeaf:
			out[i] = r.cell.leafKey
		case l.By == BySpine && r.cell.item.key != "":
			out[i] = r.cell.spineKey
		case l.By == ByBlock:
			out[i] = string(keyBlock) + r.cell.key
			if r.block != "" {
				out[i] += "/" + r.block
			}
		}
	}
	return out, sound
}

// kept tells whether the group keeps the name that its members remember.
func (b *branch) kept() bool { return b.key != "" && (b.key[0] == keySwitch || b.key[0] == keyBlock) }

// derive is the name that a key gives.
func derive(kind, key string) string {
	value := key[1:]
	if key[0] == keyPath {
		return value
	}
	plain := kind + "-" + value
	if leaf, block, cut := strings.Cut(value, "/"); cut && key[0] == keyBlock && hexadecimal(leaf) {
		plain = kind + "-" + leaf + "-" + block
	}
	if wellknown.CheckValue(plain) == nil {
		return plain
	}
	sum := sha256.Sum256([]byte(value)) // What Value drops must not make two names one.
	id := wellknown.Shorten(wellknown.Value(value), wellknown.MaxLabel-len(kind)-10)
	return wellknown.Value(kind + "-" + id + "-" + hex.EncodeToString(sum[:4]))
}

// enter keeps what a group knows of its members: one comes with sign 1 and
// goes with -1.
func (b *branch) enter(r *record, sign int32, kind string) {
	b.members += sign
	for i := range b.above {
		if up := r.chain[i]; up != nil {
			b.above[i].add(up.key, sign)
		}
	}
	if b.list != nil {
		if sign > 0 {
			b.list[r] = struct{}{}
		} else {
			delete(b.list, r)
		}
	}
	if b.kept() {
		if name := r.remembers(kind); name != "" {
			b.memory.add(name, sign)
		}
	}
}

// remembers is the name that the node carries for a kind.
func (r *record) remembers(kind string) string {
	for _, name := range r.names {
		if len(name) > len(kind)+1 && name[len(kind)] == '-' && strings.HasPrefix(name, kind) &&
			wellknown.CheckValue(name) == nil {
			return name
		}
	}
	return ""
}

// above finds the group that holds b: that of most members at the nearest
// level above at which any has one.
func (m *Map) above(b *branch) *branch {
	for i := b.level - 1; i >= 0; i-- {
		if key := b.above[i].most(); key != "" {
			return m.branches[i][key]
		}
	}
	return m.root
}

// contradict marks those members of b whose path names another group above.
// It returns the members for whom that changed.
func (b *branch) contradict(holder *branch) []*record {
	if b.list == nil || holder.level < 0 {
		return nil
	}
	now := len(b.above[holder.level].list) > 1
	if !now && !b.contradictions {
		return nil
	}
	b.contradictions = now
	var changed []*record
	bit := uint32(1) << b.level
	for r := range b.list {
		other := r.chain[holder.level] != nil && r.chain[holder.level] != holder
		if other != (r.dissent&bit != 0) {
			r.dissent ^= bit
			changed = append(changed, r)
		}
	}
	return changed
}

// replace puts one child in place of another; either may be nil.
func (b *branch) replace(old, now *Element) {
	b.changed = true
	if old != nil {
		b.kids.take(old)
	}
	if now != nil {
		b.kids.add(now)
	}
}

// build makes the group's element, nil if it has nothing to show.
func (b *branch) build(kind string) *Element {
	b.kids.apply()
	if len(b.kids.sorted) == 0 {
		return nil
	}
	e := &Element{
		Name: b.name, Kind: kind, Key: b.key[1:], Child: b.kids.sorted,
		Nodes: b.kids.nodes, Status: b.kids.status(),
	}
	if b.cell != nil && b.key[0] == keySwitch {
		e.Rails = b.cell.rails()
	}
	e.encodeGroup(&b.kids)
	return e
}

// rails are what the cell expects.
func (c *cell) rails() []Rail {
	out := make([]Rail, 0, len(c.slots))
	for i := range c.slots {
		if s := &c.slots[i]; s.expected != "" {
			out = append(out, Rail{s.rail, s.plane, *s.expectation()})
		}
	}
	return out
}

// status of a group: NotReady if every child is, Ready if every child is,
// else Degraded.
func (k *kids) status() string {
	switch len(k.sorted) {
	case k.down:
		return v1alpha1.StatusNotReady
	case k.ready:
		return v1alpha1.StatusReady
	}
	return v1alpha1.StatusDegraded
}
