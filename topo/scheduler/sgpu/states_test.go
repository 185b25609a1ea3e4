package sgpu

import (
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStatesWhileTheyChange: who looks while nodes come and go sees a node's own state or none.
func TestStatesWhileTheyChange(t *testing.T) {
	s := newStates()
	var nodes [300]*corev1.Node
	var of [len(nodes)]*nodeState
	for i := range nodes {
		nodes[i] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}}
		of[i] = &nodeState{generation: int64(i), published: published{topology: &topology{}}}
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				for i, node := range nodes {
					if state := s.load(node); state != nil && state != of[i] {
						t.Errorf("node %d has the state of node %d", i, state.generation)
						return
					}
					if has := s.topology(node); has != nil && has != of[i].topology {
						t.Errorf("node %d has another topology", i)
						return
					}
				}
			}
		})
	}
	for round := range 40 {
		for i, node := range nodes {
			if (i+round)%3 == 0 {
				s.replace(node.Name, nil)
			} else {
				s.replace(node.Name, node)
				s.store(node, of[i])
			}
		}
	}
	close(done)
	readers.Wait()
	for i, node := range nodes {
		want := of[i]
		if (i+39)%3 == 0 {
			want = nil
		}
		if got := s.load(node); got != want {
			t.Errorf("node %d has %v", i, got)
		}
	}
	if got := s.count(); got != 200 {
		t.Errorf("%d states, want 200", got)
	}
}

// TestStatesAreNoMoreThanNodes: Node objects that are replaced for ever leave nothing.
func TestStatesAreNoMoreThanNodes(t *testing.T) {
	s := newStates()
	for range 10000 {
		node := &corev1.Node{}
		s.replace("n", node)
		s.store(node, &nodeState{})
	}
	if got := len(s.table.Load().slots); s.count() != 1 || got > 64 {
		t.Errorf("%d states in %d slots", s.count(), got)
	}
}

func TestEqualTopologiesAreOne(t *testing.T) {
	var all topologies
	const text = `{"1":{"score":1,"loss":2}}`
	one := all.of(topologyKey{"nvidia.com/gpu", text})
	if all.of(topologyKey{"nvidia.com/gpu", text}) != one {
		t.Error("an equal text has a topology of its own")
	}
	if all.of(topologyKey{"amd.com/gpu", text}) == one {
		t.Error("two makers have one topology")
	}
	for i := range 3 * maxTopologies {
		all.of(topologyKey{text: string(rune('a' + i))})
	}
	if len(all.byKey) > maxTopologies {
		t.Errorf("%d topologies are kept", len(all.byKey))
	}
}

// count is how many nodes have a state.
func (s *states) count() (n int) {
	t := s.table.Load()
	for i := range t.slots {
		if t.slots[i].state.Load() != nil {
			n++
		}
	}
	return n
}
