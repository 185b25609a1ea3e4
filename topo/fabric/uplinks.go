package fabric

import "slices"

// index and unindex keep what is found by something else than the node: HCAs'
// GUIDs, and who reports a leaf's uplinks.
func (b *Builder) index(n *node) {
	for i := range n.ports {
		b.changed(b.hcas.add(n.ports[i].guid, n))
	}
	for _, id := range n.upLeaves {
		all := b.uplinks[id]
		if i, found := slices.BinarySearchFunc(all, n.name, compareName); !found {
			b.uplinks[id] = slices.Insert(all, i, n)
		}
	}
}

func (b *Builder) unindex(n *node) {
	for i := range n.ports {
		b.changed(b.hcas.remove(n.ports[i].guid, n))
	}
	for _, id := range n.upLeaves {
		rest := slices.DeleteFunc(b.uplinks[id], func(o *node) bool { return o == n })
		if len(rest) == 0 {
			delete(b.uplinks, id)
		} else {
			b.uplinks[id] = rest
		}
	}
}

func (b *Builder) changed(nodes []*node) {
	for _, n := range nodes {
		b.changes.show(n)
	}
}

// UplinkDiscovery assigns the leaves to the workers that discover their
// uplinks, by node: a Ready node with an active InfiniBand link to the leaf, the
// same one as long as it stays fit, and the leaves spread over the nodes. Every
// replica assigns alike. infiniband reports whether a leaf can be asked; nil
// means that any can.
func (b *Builder) UplinkDiscovery(infiniband func(leaf string) bool) map[string][]string {
	chosen := map[*leaf]*node{}
	for _, n := range b.nodes {
		if !n.ready {
			continue
		}
		for i := range n.ports {
			p := &n.ports[i]
			if p.leaf == nil || !p.active || infiniband != nil && !infiniband(p.leaf.id) {
				continue
			}
			if o := chosen[p.leaf]; o == nil || rank(p.leaf.id, n.name) < rank(p.leaf.id, o.name) ||
				rank(p.leaf.id, n.name) == rank(p.leaf.id, o.name) && n.name < o.name {
				chosen[p.leaf] = n
			}
		}
	}
	out := map[string][]string{}
	for l, n := range chosen {
		out[n.name] = append(out[n.name], l.id)
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
