// Package snapshot holds topo-master's state at one moment, and the shapes of its answers.
//
// It owns the tree, nodes and gangs behind all answers, and the JSON of GET /v1/topology,
// /v1/nodes/{name} and /v1/gangs. It is pure: no clock, no network, no API server. The tree and the
// bytes of /node_group are topo/fabric's.
package snapshot

import (
	"maps"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

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
	// Spares are the idle nodes of each lowest group that are kept for repair; see [placement.Spares].
	Spares intstr.IntOrString
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

// Table has entries by key. It never changes.
type Table[E interface{ Empty() bool }] map[string]E

// With returns the table with other entries for some keys; empty ones are left out. It copies the table: at
// 100,000 nodes that is some 4 MB for a step of any number of changes.
func (t Table[E]) With(changes map[string]E) Table[E] {
	if len(changes) == 0 {
		return t
	}
	out := make(Table[E], len(t)+len(changes))
	maps.Copy(out, t)
	for key, e := range changes {
		if out[key] = e; e.Empty() {
			delete(out, key)
		}
	}
	return out
}
