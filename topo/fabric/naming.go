package fabric

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// rename names the domains of the levels of which domains have other members.
func (t *tree) rename() {
	changed := make([]bool, len(t.levels))
	for d := range t.members {
		changed[d.level] = true
	}
	clear(t.members)
	for i, domains := range t.domains {
		if !changed[i] {
			continue
		}
		names := namesOf(domains)
		for _, d := range domains {
			if name := names.name(d); name != d.name {
				d.name = name
				t.showAgain(d)
			}
		}
	}
}

// names are those that the domains of one level may have; see the package
// comment.
type names struct {
	// claimed are the domains of which most members remember a name, derived
	// those with a key that gives it.
	claimed, derived map[string][]*domain
}

func namesOf(domains map[string]*domain) names {
	n := names{claimed: map[string][]*domain{}, derived: make(map[string][]*domain, len(domains))}
	for _, d := range domains {
		n.derived[d.derived] = append(n.derived[d.derived], d)
		if d.claimed != "" {
			n.claimed[d.claimed] = append(n.claimed[d.claimed], d)
		}
	}
	return n
}

// owner is the domain that a name belongs to, nil if to none: one with that name
// given, else the one in which most members remember it, else one with a key
// that gives it.
func (n *names) owner(name string) *domain {
	if given := best(n.derived[name], func(a, b *domain) bool {
		if a.remembers() != b.remembers() {
			return b.remembers()
		}
		return a.key > b.key // Paths before NVLink domains.
	}); given != nil && !given.remembers() {
		return given
	}
	if claimed := best(n.claimed[name], func(a, b *domain) bool {
		x, y := a.memory.count(name), b.memory.count(name)
		return x > y || x == y && a.key < b.key
	}); claimed != nil {
		return claimed
	}
	return best(n.derived[name], func(a, b *domain) bool { return a.key < b.key })
}

// isShared reports whether a name is that of several switches, and no group has
// had it: then each gets a suffix, whichever came first.
func (n *names) isShared(name string) bool {
	described := 0
	for _, d := range n.derived[name] {
		if d.isDescribed {
			described++
		}
	}
	return described > 1
}

// best is the first by an order, nil of none.
func best(all []*domain, before func(a, b *domain) bool) *domain {
	var first *domain
	for _, d := range all {
		if first == nil || before(d, first) {
			first = d
		}
	}
	return first
}

// name is the domain's: what it remembers unless another has a better claim,
// else what its switch is called, else what its key gives, else that with a
// suffix.
func (n *names) name(d *domain) string {
	if d.claimed != "" && n.owner(d.claimed) == d {
		return d.claimed
	}
	name := d.derived
	for i := 1; ; i++ {
		if o := n.owner(name); o == nil || o == d && !n.isShared(name) {
			return name
		}
		if d.isDescribed && i <= 3 {
			name = d.suffixed(2 * i)
			continue
		}
		name = wellknown.Shorten(d.derived, wellknown.MaxLabel-6) + "-" + strconv.Itoa(i+1)
	}
}

// remembers reports whether the domain keeps the name that its members
// remember.
func (d *domain) remembers() bool { return d.key[0] == keySwitch || d.key[0] == keyBlock }

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

// remembers is the name that the node carries for a kind.
func (n *node) remembers(kind string) string {
	for _, name := range n.Names {
		if len(name) > len(kind)+1 && name[len(kind)] == '-' && strings.HasPrefix(name, kind) &&
			wellknown.CheckValue(name) == nil {
			return name
		}
	}
	return ""
}
