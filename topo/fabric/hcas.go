package fabric

import (
	"slices"
	"strings"
)

// hcas are the HCAs' GUIDs: first has a node that reports each, doubles all
// nodes of a GUID that several report, by name.
type hcas struct {
	first   map[uint64]*node
	doubles map[uint64][]*node
	// changes are to be counted.
	changes []portChange
}

// portChange is a node that reports other ports than before.
type portChange struct {
	node *node
	was  []port
}

// changed notes that a node had these ports.
func (h *hcas) changed(n *node, was []port) {
	if !n.isRecounted {
		n.isRecounted = true
		h.changes = append(h.changes, portChange{n, was})
	}
}

// recount counts the changes. It returns the nodes with findings that this changes.
func (h *hcas) recount() (shown []*node) {
	for _, c := range h.changes {
		c.node.isRecounted = false
		for i := range c.was {
			shown = append(shown, h.remove(c.was[i].guid, c.node)...)
		}
		for i := range c.node.ports {
			shown = append(shown, h.add(c.node.ports[i].guid, c.node)...)
		}
	}
	h.changes = nil
	return shown
}

// add notes that a node reports a GUID, 0 for none. It returns the nodes
// with findings that this changes.
func (h *hcas) add(guid uint64, n *node) []*node {
	first := h.first[guid]
	switch {
	case guid == 0 || first == n:
		return nil
	case first == nil:
		h.first[guid] = n
		return nil
	}
	all := h.doubles[guid]
	if all == nil {
		all = []*node{first}
	}
	i, found := slices.BinarySearchFunc(all, n.Name, compareName)
	if found {
		return nil
	}
	all = slices.Insert(all, i, n)
	h.doubles[guid] = all
	return concerned(all, i)
}

// remove is the opposite of add.
func (h *hcas) remove(guid uint64, n *node) []*node {
	all := h.doubles[guid]
	if all == nil {
		if h.first[guid] == n {
			delete(h.first, guid)
		}
		return nil
	}
	i, found := slices.BinarySearchFunc(all, n.Name, compareName)
	if !found {
		return nil
	}
	changed := slices.Clone(concerned(all, i))
	all = slices.Delete(all, i, i+1)
	h.first[guid] = all[0]
	h.doubles[guid] = all
	if len(all) == 1 {
		delete(h.doubles, guid)
	}
	return changed
}

// concerned are those with a finding that names another node when the i-th comes or
// goes: each names the first other.
func concerned(all []*node, i int) []*node {
	if i < 2 {
		return all
	}
	return nil
}

// other is the first other node that reports a GUID, "" if none does.
func (h *hcas) other(guid uint64, n *node) string {
	for _, o := range h.doubles[guid] {
		if o != n {
			return o.Name
		}
	}
	return ""
}

func compareName(n *node, name string) int { return strings.Compare(n.Name, name) }
