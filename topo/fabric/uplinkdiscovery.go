package fabric

import (
	"slices"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

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
