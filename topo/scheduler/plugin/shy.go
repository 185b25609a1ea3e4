package plugin

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// shy remembers which nodes turned a member of a native PodGroup away for what
// no plan sees, so that its next cycle does not begin there again. A gang of the
// book remembers that itself.
type shy struct {
	mu     sync.Mutex
	groups map[types.NamespacedName]*avoided
}

type avoided struct {
	until map[string]time.Time
	turns int
}

// of are the nodes that a PodGroup avoids now, and until when; a copy.
func (s *shy) of(key types.NamespacedName, now time.Time) map[string]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]time.Time{}
	if a := s.groups[key]; a != nil {
		maps.DeleteFunc(a.until, func(_ string, until time.Time) bool { return now.After(until) })
		maps.Copy(out, a.until)
	}
	return out
}

// add lets a PodGroup avoid a node for a while, longer each time. Groups that
// have not avoided anything for long are forgotten.
func (s *shy) add(key types.NamespacedName, node string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, a := range s.groups {
		old := now.Add(-avoidMost)
		maps.DeleteFunc(a.until, func(_ string, until time.Time) bool { return old.After(until) })
		if len(a.until) == 0 && other != key {
			delete(s.groups, other)
		}
	}
	if s.groups == nil {
		s.groups = map[types.NamespacedName]*avoided{}
	}
	a := s.groups[key]
	if a == nil {
		a = &avoided{until: map[string]time.Time{}}
		s.groups[key] = a
	}
	a.until[node] = now.Add(min(avoidFirst<<min(a.turns, 10), avoidMost))
	a.turns++
}

// forgive is called when a node is not what it was.
func (s *shy) forgive(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.groups {
		delete(a.until, node)
	}
}

// forget is called when a PodGroup has its nodes.
func (s *shy) forget(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.groups, key)
}
