package fabric

import (
	"slices"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// leafGroup are the nodes with one outcome of vote 4. It exists in every mode,
// because cabling is checked by it.
type leafGroup struct {
	key string
	// leafKey and spineKey are the keys of the domains that show the group and
	// the groups that share spines.
	leafKey, spineKey string

	members []*node
	cabling cabling
	// member stands for the group among the spines.
	member member[*leafGroup]
	// spines are those that the votes see, peers all switches behind the uplinks.
	spines, peers []string
}

func newLeafGroup(key string) *leafGroup {
	g := &leafGroup{key: key, leafKey: string(keySwitch) + key}
	g.member.owner = g
	return g
}

// expectations are what the tree shows of the rails.
func (c *cabling) expectations() []Rail {
	return slices.DeleteFunc(slices.Clone(c.rails), func(r Rail) bool { return r.Leaf == (Switch{}) })
}

// UplinkDiscovery assigns the leaves that answer over InfiniBand to the workers
// that discover their uplinks, by node: a Ready node with an active link to the
// leaf, the same one as long as it stays fit, and the leaves spread over the
// nodes. Every replica assigns alike.
func (b *Builder) UplinkDiscovery() map[string][]string {
	chosen, infiniband := map[*leaf]*node{}, set[*leaf]{}
	for _, n := range b.nodes {
		for i := range n.ports {
			p := &n.ports[i]
			if p.leaf != nil && p.source == v1alpha1.SourceIB {
				infiniband.add(p.leaf)
			}
			if p.leaf == nil || p.state != v1alpha1.LinkActive || !n.Ready {
				continue
			}
			if o := chosen[p.leaf]; o == nil || rank(p.leaf.id, n.Name) < rank(p.leaf.id, o.Name) ||
				rank(p.leaf.id, n.Name) == rank(p.leaf.id, o.Name) && n.Name < o.Name {
				chosen[p.leaf] = n
			}
		}
	}
	out := map[string][]string{}
	for l := range infiniband {
		if n := chosen[l]; n != nil {
			out[n.Name] = append(out[n.Name], l.id)
		}
	}
	for _, leaves := range out {
		slices.Sort(leaves)
	}
	return out
}

// rank orders the candidates of a leaf, by chance that every replica shares
// (rendezvous hashing).
func rank(leaf, node string) uint64 {
	h := uint64(14695981039346656037) // FNV-1a.
	for _, s := range [2]string{leaf, node} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h = (h ^ '/') * 1099511628211
	}
	h ^= h >> 32
	return h * 0x9e3779b97f4a7c15
}
