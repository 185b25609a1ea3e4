package fabric

import (
	"slices"
	"strings"
)

// spinesPerLeaf is how many spines of one leaf count: in a fat tree the leaves
// of a rail share all of theirs, so the first few tell as much as all.
const spinesPerLeaf = 4

// spinesOf are the spines behind the uplinks of the cell's own leaves, one
// entry per leaf and spine. Of several nodes that report a leaf the first by
// name is believed, and only one that has a cable to that leaf.
func (m *Map) spinesOf(c *cell) []string {
	var out []string
	for _, own := range c.own.list {
		reporters := m.uplinks[own.id]
		if len(reporters) == 0 {
			continue
		}
		var peers []string
		for i := range reporters[0].ups {
			u := &reporters[0].ups[i]
			if peer := switchID(u.Peer); switchID(u.Leaf) == own.id && peer != own.id && peer != "" {
				peers = append(peers, peer)
			}
		}
		slices.Sort(peers)
		peers = slices.Compact(peers)
		out = append(out, peers[:min(len(peers), spinesPerLeaf)]...)
	}
	slices.Sort(out)
	return out
}

// Walks says which node's worker is to walk which leaves, by node: a Ready
// node with an active InfiniBand cable to the leaf, the same one as long as it
// stays fit, and the leaves spread over the nodes. Every replica says the same.
// infiniband tells whether a leaf can be walked; nil means that any can.
func (m *Map) Walks(infiniband func(leaf string) bool) map[string][]string {
	chosen := map[string]*record{}
	for _, r := range m.nodes {
		if !r.ready {
			continue
		}
		for i := range r.ports {
			p := &r.ports[i]
			if p.leaf == "" || !p.alive || infiniband != nil && !infiniband(p.leaf) {
				continue
			}
			if o := chosen[p.leaf]; o == nil || rank(p.leaf, r.name) < rank(p.leaf, o.name) ||
				rank(p.leaf, r.name) == rank(p.leaf, o.name) && r.name < o.name {
				chosen[p.leaf] = r
			}
		}
	}
	out := map[string][]string{}
	for leaf, r := range chosen {
		out[r.name] = append(out[r.name], leaf)
	}
	for _, leaves := range out {
		slices.SortFunc(leaves, strings.Compare)
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
