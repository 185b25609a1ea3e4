package sgpu

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
)

// states are the states of nodes, by Node object. A scheduler looks at hundreds of nodes for
// each pod, from many goroutines, and changes one or two: a look takes no lock and touches one
// slot of a flat table, where a tree of pointers is out of the processor's cache.
type states struct {
	mu    sync.Mutex // For writers.
	table atomic.Pointer[table]
	// byName are the Node objects that have a state.
	byName map[string]*corev1.Node
	// used are the slots that are not empty, those of removed nodes too.
	used int
	// removed is in the slots of nodes that were removed, so that their objects are not kept.
	removed *corev1.Node
}

// table is probed slot by slot from a node's hash on. A quarter of it at least is empty, and
// its length is a power of 2.
type table struct {
	seed  maphash.Seed
	slots []slot
}

// slot is empty until it has a node, and then of this node or of none for ever.
type slot struct {
	node  atomic.Pointer[corev1.Node]
	state atomic.Pointer[nodeState]
	// topology is the state's, which never changes: all that Score reads of most nodes.
	topology atomic.Pointer[topology]
}

func newStates() *states {
	t := &states{removed: &corev1.Node{}, byName: map[string]*corev1.Node{}}
	t.table.Store(&table{maphash.MakeSeed(), make([]slot, 64)})
	return t
}

// find is the slot of a node, or the empty one where it would be.
func (t *table) find(node *corev1.Node) *slot {
	for i := maphash.Comparable(t.seed, node); ; i++ {
		s := &t.slots[i&uint64(len(t.slots)-1)] //nolint:gosec // A length.
		if has := s.node.Load(); has == node || has == nil {
			return s
		}
	}
}

// load is the state of a node; nil if there is none.
func (s *states) load(node *corev1.Node) *nodeState {
	if at := s.table.Load().find(node); at.node.Load() == node { // It may be another node's since.
		return at.state.Load()
	}
	return nil
}

// topology is what a node's state has as such; nil if there is none.
func (s *states) topology(node *corev1.Node) *topology {
	if at := s.table.Load().find(node); at.node.Load() == node {
		return at.topology.Load()
	}
	return nil
}

func (s *states) store(node *corev1.Node, state *nodeState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.table.Load()
	if t.find(node).node.Load() == nil {
		if 4*s.used >= 3*len(t.slots) {
			t = s.rebuild(t)
		}
		s.used++
	}
	t.find(node).set(node, state)
}

func (at *slot) set(node *corev1.Node, state *nodeState) {
	at.state.Store(state)
	at.topology.Store(state.topology)
	at.node.Store(node) // The last one: who finds the node finds the others.
}

// rebuild leaves the slots of removed nodes out, and makes room for as many nodes again.
func (s *states) rebuild(old *table) *table {
	var nodes []*slot
	for i := range old.slots {
		if node := old.slots[i].node.Load(); node != nil && node != s.removed {
			nodes = append(nodes, &old.slots[i])
		}
	}
	t := &table{old.seed, make([]slot, max(1<<bits.Len(uint(2*len(nodes))), 64))}
	for _, n := range nodes {
		node := n.node.Load()
		t.find(node).set(node, n.state.Load())
	}
	s.used = len(nodes)
	s.table.Store(t)
	return t
}

// replace makes a Node object the one of its name that has a state, and returns the state of
// the one before, which is empty if there was none. A nil object is that of a node that is gone.
func (s *states) replace(name string, node *corev1.Node) *nodeState {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.byName[name]
	if s.byName[name] = node; node == nil {
		delete(s.byName, name)
	}
	if before != nil && before != node {
		if of := s.table.Load().find(before); of.node.Load() == before {
			of.node.Store(s.removed)
			return of.state.Swap(nil)
		}
	}
	return &nodeState{}
}
