package fabric

import (
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// naming gives the groups of one level their names; see the package comment.
type naming struct {
	kind string
	// claims are the groups whose members remember a name, derived those
	// whose key gives it.
	claims, derived map[string][]*branch
	// dirty are the names whose groups have to be looked at.
	dirty []string
}

// enlist and strike keep the groups that there are.
func (n *naming) enlist(b *branch) {
	name := derive(n.kind, b.key)
	n.derived[name] = append(n.derived[name], b)
	n.dirty = append(n.dirty, name)
}

func (n *naming) strike(b *branch) {
	name := derive(n.kind, b.key)
	drop(n.derived, name, b)
	n.claim(b, "")
	n.dirty = append(n.dirty, name)
}

func drop(m map[string][]*branch, name string, b *branch) {
	rest := slices.DeleteFunc(m[name], func(o *branch) bool { return o == b })
	if len(rest) == 0 {
		delete(m, name)
	} else {
		m[name] = rest
	}
}

// remember brings a group's claim up to date: the name that more than half of
// its members carry.
func (n *naming) remember(b *branch) {
	if !b.kept() {
		return
	}
	name := b.memory.most()
	if 2*b.memory.count(name) <= b.members {
		name = ""
	}
	n.claim(b, name)
	if name != "" && len(n.claims[name]) > 1 {
		n.dirty = append(n.dirty, name) // The count decides between them.
	}
}

func (n *naming) claim(b *branch, name string) {
	if name == b.claimed {
		return
	}
	if b.claimed != "" {
		drop(n.claims, b.claimed, b)
		n.dirty = append(n.dirty, b.claimed)
	}
	b.claimed = name
	n.dirty = append(n.dirty, derive(n.kind, b.key))
	if name != "" {
		n.claims[name] = append(n.claims[name], b)
		n.dirty = append(n.dirty, name)
	}
}

// owner is the group that a name belongs to, nil if to nobody: one whose name
// is given, else the one in which most members remember it, else one whose key
// gives it.
func (n *naming) owner(name string) *branch {
	var given, first *branch
	for _, b := range n.derived[name] {
		if !b.kept() && (given == nil || b.key > given.key) { // Paths before NVLink domains.
			given = b
		}
		if first == nil || b.key < first.key {
			first = b
		}
	}
	if given != nil {
		return given
	}
	var best *branch
	for _, b := range n.claims[name] {
		if best == nil {
			best = b
			continue
		}
		x, y := b.memory.count(name), best.memory.count(name)
		if x > y || x == y && b.key < best.key {
			best = b
		}
	}
	if best != nil {
		return best
	}
	return first
}

// settle names again whoever a change may concern, and returns the groups
// whose names changed.
func (n *naming) settle() []*branch {
	var changed []*branch
	again := func(all []*branch) {
		for _, b := range all {
			if name := n.name(b); name != b.name && b.members > 0 {
				b.name = name
				changed = append(changed, b)
			}
		}
	}
	for _, name := range n.dirty {
		again(n.claims[name])
		again(n.derived[name])
		if i := strings.LastIndexByte(name, '-'); i > 0 { // It may have been somebody's way out.
			again(n.derived[name[:i]])
		}
	}
	n.dirty = n.dirty[:0]
	return changed
}

// name is the group's: what it remembers if nobody has a better claim, else
// what its key gives, else that with a number.
func (n *naming) name(b *branch) string {
	if b.claimed != "" && n.owner(b.claimed) == b {
		return b.claimed
	}
	base := derive(n.kind, b.key)
	for i := 2; ; i++ {
		name := base
		if i > 2 {
			name = wellknown.Shorten(base, wellknown.MaxLabel-6) + "-" + strconv.Itoa(i-1)
		}
		if o := n.owner(name); o == nil || o == b {
			return name
		}
	}
}
