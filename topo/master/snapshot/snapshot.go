// Package snapshot holds topo-master's state at one moment, and the shapes of its answers.
//
// It owns the tree, nodes and gangs behind all answers, and the JSON of GET /v1/topology,
// /v1/nodes/{name} and /v1/gangs. It is pure: no clock, no network, no API server. The tree and the
// bytes of /node_group are topo/fabric's.
package snapshot

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/informers"
)

// Snapshot is everything at one moment. It never changes, but for the heartbeats
// of reports.
type Snapshot struct {
	// Generation counts the changes that this replica has seen.
	Generation uint64
	// Mapped is the generation of the last change of anything but gangs.
	Mapped uint64
	Tree   *fabric.Snapshot
	Levels []fabric.Level
	Nodes  Table[*informers.NodeState]
	Gangs  Table[*informers.Gang]
	// Discovery holds the leaves with uplinks for each node's worker to discover, by node.
	Discovery map[string][]string
	// StaleSince is the time when the API server last sent anything, if that is too long ago; else
	// zero.
	StaleSince time.Time
}

// Latest is the newest snapshot, for any number of readers.
type Latest struct{ state atomic.Pointer[state] }

type state struct {
	snapshot *Snapshot
	next     chan struct{}
}

// NewLatest has no snapshot yet.
func NewLatest() *Latest {
	l := &Latest{}
	l.state.Store(&state{next: make(chan struct{})})
	return l
}

// Get returns the newest snapshot, nil before the first, and a channel that is closed when another
// follows.
func (l *Latest) Get() (s *Snapshot, next <-chan struct{}) {
	now := l.state.Load()
	return now.snapshot, now.next
}

// Set publishes a snapshot.
func (l *Latest) Set(s *Snapshot) {
	old := l.state.Swap(&state{snapshot: s, next: make(chan struct{})})
	close(old.next)
}

// entry is an entry of a [Table]. Empty entries do not count.
type entry interface {
	Key() string
	Empty() bool
}

// Table is a list in the order of keys. It never changes.
type Table[E entry] []E

// Get returns the entry of a key.
func (t Table[E]) Get(key string) (e E, ok bool) {
	i, ok := slices.BinarySearchFunc(t, key, func(e E, key string) int { return strings.Compare(e.Key(), key) })
	if ok {
		e = t[i]
	}
	return e, ok
}

// With returns the table with other entries for some keys. It copies the list: at
// 100,000 nodes that is 0.8 MB for a step of any number of changes.
func (t Table[E]) With(changes map[string]E) Table[E] {
	if len(changes) == 0 {
		return t
	}
	out := make(Table[E], 0, len(t)+len(changes))
	i := 0
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		for i < len(t) && t[i].Key() < key {
			out = append(out, t[i])
			i++
		}
		if i < len(t) && t[i].Key() == key {
			i++
		}
		if e := changes[key]; !e.Empty() {
			out = append(out, e)
		}
	}
	return append(out, t[i:]...)
}
