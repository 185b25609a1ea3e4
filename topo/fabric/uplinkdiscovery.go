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
	chosen, infiniband := map[int32]*node{}, map[int32]bool{}
	for _, n := range b.order {
		for i := range n.links.ports {
			p := &n.links.ports[i]
			if p.leaf != 0 && p.source == v1alpha1.SourceIB {
				infiniband[p.leaf] = true
			}
			if p.leaf == 0 || p.state != v1alpha1.LinkActive || !n.Ready {
				continue
			}
			id := b.symbols.ids[p.leaf]
			if o := chosen[p.leaf]; o == nil || rank(id, n.Name) < rank(id, o.Name) { // Of equals the first by name.
				chosen[p.leaf] = n
			}
		}
	}
	out := map[string][]string{}
	for leaf := range infiniband {
		if n := chosen[leaf]; n != nil {
			out[n.Name] = append(out[n.Name], b.symbols.ids[leaf])
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
	for _, c := range []byte(leaf + "/" + node + "/") {
		h = (h ^ uint64(c)) * 1099511628211
	}
	h ^= h >> 32
	return h * 0x9e3779b97f4a7c15
}
