package fabric

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// naming describes how a domain gets its name; see the package comment.
type naming struct {
	// derived is the name from the switch's description or the key; isDescribed is set if it is from the description.
	derived     string
	isDescribed bool
	// memory are the names that the members remember, claimed is the one of more than half of them.
	memory  tally[string]
	claimed string
	name    string
}

// rename names all domains. What the last tree knew of the same members is reused.
func (t *tree) rename(last *tree, ids []string) {
	for i, domains := range t.domains {
		for _, d := range domains {
			if was := last.find(d); was.print == d.print {
				d.naming = was.naming
			} else {
				d.naming = d.names(&t.levels[i], ids)
			}
		}
		assign(domains)
	}
}

// names finds out what a domain may be called.
func (d *domain) names(level *Level, ids []string) naming {
	n := naming{derived: d.identity(level.Kind)}
	if !d.remembers() {
		return n
	}
	for p := range d.members() {
		if name := p.remembers(level.Kind); name != "" {
			n.memory.add(name, 1)
		}
	}
	if name := n.memory.most(strings.Compare); 2*int(n.memory.count(name)) > d.nodes {
		n.claimed = name
	}
	var words tally[string]
	for _, seen := range d.reported(level.By, ids).list {
		if word := word(seen.value); word != "" {
			words.add(word, seen.n)
		}
	}
	if len(words.list) == 0 {
		return n
	}
	block := ""
	if d.by == keyBlock {
		block = strings.TrimSuffix("-"+d.classes[0].block, "-")
	}
	n.derived, n.isDescribed = title(level.Kind, words.most(strings.Compare), block), true
	// A name by the switch's ID (a GUID or a MAC address), as the domain had while the description was unknown, no
	// longer counts.
	by, _, _ := strings.Cut(strings.TrimPrefix(n.claimed, level.Kind+"-"), "-")
	if (len(by) == 16 || len(by) == 12) && hexadecimal(by) {
		n.claimed = ""
	}
	return n
}

// remembers reports whether the domain keeps the name that its members remember.
func (d *domain) remembers() bool { return d.by == keySwitch || d.by == keyBlock }

// remembers returns the name that the node carries for a kind.
func (n *node) remembers(kind string) string {
	for _, name := range n.Names {
		if len(name) > len(kind)+1 && name[len(kind)] == '-' && strings.HasPrefix(name, kind) {
			return name
		}
	}
	return ""
}

// identity returns the name that a key gives.
func (d *domain) identity(kind string) string {
	if d.by == keyPath {
		return d.id
	}
	plain := kind + "-" + d.id
	if leaf, block, cut := strings.Cut(d.id, "/"); cut && d.by == keyBlock && hexadecimal(leaf) {
		plain = kind + "-" + leaf + "-" + block
	}
	if wellknown.CheckValue(plain) == nil {
		return plain
	}
	sum := sha256.Sum256([]byte(d.id)) // What Value drops must not make two names one.
	id := wellknown.Shorten(wellknown.Value(d.id), wellknown.MaxLabel-len(kind)-10)
	return wellknown.Value(kind + "-" + id + "-" + hex.EncodeToString(sum[:4]))
}

// reported returns the names of the domain's switch in the members' reports: by their cables, or of spines by the
// uplinks.
func (d *domain) reported(by Evidence, ids []string) (seen tally[string]) {
	if g := d.classes[0].group; by != BySpine {
		return g.names[g.leaf]
	}
	for n := range d.members() {
		for _, u := range n.links.uplinks {
			if ids[u.peer] == d.id {
				seen.add(u.name, 1)
			}
		}
	}
	return seen
}

// title returns a group's name by its switch's: the kind does not stand twice.
func title(kind, word, block string) string {
	if !strings.HasPrefix(word, kind+"-") {
		word = kind + "-" + word
	}
	const suffix = len("-012345678901") // Of a name that is not unique, at most.
	return wellknown.Shorten(word, wellknown.MaxLabel-suffix-len(block)) + block
}

// word turns a switch's description into a part of a label's value; "" for descriptions that firmware gives to every
// switch of a model.
func word(description string) string {
	// NVIDIA's switches: MF0;leaf-1:MQM9700/U1. Of several chips in one box only the number distinguishes them.
	if m := managed.FindStringSubmatch(description); m != nil {
		description = m[1]
		if chip := m[2]; chip != "" && chip != "/U1" {
			description += strings.ReplaceAll(chip, "/", "-")
		}
	}
	if strings.HasSuffix(description, "Mellanox Technologies") || strings.EqualFold(description, "switch") {
		return ""
	}
	return wellknown.Value(description)
}

var managed = regexp.MustCompile(`^MF\d+;(.+):[^:/]+(/.*)?$`)

// precedes orders domains by their right to a name: one with that name given, paths before NVLink domains, before one
// in which most members remember it, before one with a key that gives it.
func (d *domain) precedes(o *domain) int {
	switch x, y := d.remembers(), o.remembers(); {
	case x && y:
		return cmp.Or(int(o.memory.count(o.claimed)-d.memory.count(d.claimed)), d.compare(o.key))
	case x:
		return 1
	case y:
		return -1
	}
	return o.compare(d.key)
}

// assign gives each domain of a level a name of its own: what it remembers, else what its switch is called, else what
// its key gives. Where several switches have one description and no group had the name before, each gets a suffix,
// whichever came first.
func assign(domains map[key]*domain) {
	list := slices.SortedFunc(maps.Values(domains), (*domain).precedes)
	taken, described := map[string]bool{}, map[string]int{}
	take := func(d *domain, name string) {
		if d.name == "" && !taken[name] {
			d.name, taken[name] = name, true
		}
	}
	for _, d := range list {
		if d.name = ""; d.isDescribed {
			described[d.derived]++
		}
		if !d.remembers() {
			take(d, d.derived)
		} else if d.claimed != "" {
			take(d, d.claimed)
		}
	}
	for _, d := range list {
		if described[d.derived] < 2 {
			take(d, d.derived)
		}
		for i := 1; d.name == ""; i++ {
			// The suffix is the same on every replica and after every restart, whatever other groups exist.
			sum := sha256.Sum256([]byte(string(d.by) + d.id))
			if d.isDescribed && i <= 3 {
				take(d, d.derived+"-"+hex.EncodeToString(sum[:2*i]))
			} else {
				take(d, wellknown.Shorten(d.derived, wellknown.MaxLabel-6)+"-"+strconv.Itoa(i+1))
			}
		}
	}
}
