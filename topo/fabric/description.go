package fabric

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// maxSuffix is the longest suffix of a name that is not unique, in bytes: a
// hyphen and twelve digits.
const maxSuffix = 13

// redescribe marks the domains by that evidence of a node that reports other
// switches, which may have other names.
func (t *tree) redescribe(n *node, by ...Evidence) {
	for _, d := range n.chain {
		if d != nil && d.remembers() && slices.Contains(by, t.levels[d.level].By) {
			t.described.add(d)
		}
	}
}

// redescribed marks the domains that get another name by that. It has all names
// of their levels compared.
func (t *tree) redescribed() {
	for d := range t.described {
		was := d.derived
		if len(d.members) == 0 {
			continue
		}
		if t.describe(d); d.derived != was {
			t.members.add(d)
		}
	}
	clear(t.described)
}

// describeAll is describe of many.
func (t *tree) describeAll(domains []*domain) {
	parallel(len(domains), func(from, to int) {
		for _, d := range domains[from:to] {
			t.describe(d)
		}
	})
}

// describe computes what a domain is called by the description of its switch in
// the members' reports. A name by the switch's ID, as it had while the
// description was unknown, is then no longer claimed.
func (t *tree) describe(d *domain) {
	level := &t.levels[d.level]
	id, block := d.key[1:], ""
	if d.key[0] == keyBlock {
		for n := range d.members { // All are of one.
			id, block = n.group.key, n.block
			break
		}
	}
	var words votes
	for far, n := range d.reported(level.By, id) {
		if word := word(far.Name); word != "" && SwitchID(far.ID) == id {
			words.add(word, n)
		}
	}
	d.isDescribed = len(words.list) > 0
	if !d.isDescribed {
		d.derived = derive(level.Kind, d.key)
		return
	}
	d.derived = title(level.Kind, words.most(), block)
	if by, _, _ := strings.Cut(strings.TrimPrefix(d.claimed, level.Kind+"-"), "-"); isIdentity(by) {
		d.claimed = ""
	}
}

// reported are switches as the members report them, with how often: those with that ID
// and cables, or with By spine those behind uplinks.
func (d *domain) reported(by Evidence, id string) map[*v1alpha1.Switch]int32 {
	seen := map[*v1alpha1.Switch]int32{} // Readers share them.
	var own *leaf
	for n := range d.members {
		if by == BySpine {
			for _, u := range n.Report.uplinks() {
				seen[&v1alpha1.Switch{ID: u.Peer, Name: u.PeerName}] = 1
			}
			continue
		}
		for i := range n.ports {
			p := &n.ports[i]
			if own == nil && p.leaf != nil && p.leaf.id == id {
				own = p.leaf
			}
			if own != nil && p.leaf == own {
				seen[p.far]++
			}
		}
	}
	return seen
}

// isIdentity reports whether a part of a name is a GUID or a MAC address.
func isIdentity(s string) bool { return (len(s) == 16 || len(s) == 12) && hexadecimal(s) }

// title is a group's name by its switch's: the kind does not stand twice.
func title(kind, word, block string) string {
	if !strings.HasPrefix(word, kind+"-") {
		word = kind + "-" + word
	}
	if block != "" {
		block = "-" + block
	}
	return wellknown.Shorten(word, wellknown.MaxLabel-maxSuffix-len(block)) + block
}

// word is what a switch calls itself, as the part of a label's value; "" for
// descriptions that firmware gives to every switch of a model.
func word(description string) string {
	// NVIDIA's switches: MF0;leaf-1:MQM9700/U1. Of several chips in one box only
	// the number distinguishes them.
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

// suffixed is a title that is not unique with a suffix of so many bytes of the
// key's hash: the same on every replica, after every restart, whatever other
// groups there are.
func (d *domain) suffixed(bytes int) string {
	sum := sha256.Sum256([]byte(d.key))
	return d.derived + "-" + hex.EncodeToString(sum[:bytes])
}
