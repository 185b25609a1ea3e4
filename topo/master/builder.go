// Package master builds topo-master's snapshots out of what the API server has.
//
// It owns the one goroutine that feeds topo/fabric. It holds no state that the
// API server does not have: a new replica with the same Nodes and reports
// answers the same. Answers are httpapi's, writes publish's, watches informers'.
package master

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/clock"

	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// Options configures a Builder.
type Options struct {
	Source *informers.Source
	// Levels are the tree's; NewLevels receives others when the configuration
	// changes, and may be nil.
	Levels    []fabric.Level
	NewLevels <-chan []fabric.Level
	// Spares are the idle nodes of each lowest group that are kept for repair; see [placement.Spares].
	Spares intstr.IntOrString
	// Pause is the least time between two trees, since each is computed from all reports.
	Pause time.Duration
	// Clock is the real one if nil.
	Clock clock.PassiveClock
	Log   *slog.Logger
}

// tick is the interval of checks of heartbeats and uplink discovery.
const tick = 5 * time.Second

// Builder makes snapshots. Latest, Register and Alive are safe for concurrent
// use; the rest belongs to Run.
type Builder struct {
	options Options
	latest  *snapshot.Latest
	// turned is the time of the loop's last turn, in nanoseconds since 1970.
	turned atomic.Int64

	fabric *fabric.Builder
	levels []fabric.Level
	clock  heartbeatClock
	// last is the newest snapshot; discovered is the tree that its Discovery is of.
	last       *snapshot.Snapshot
	discovered *fabric.Snapshot
}

// New returns a builder; Run starts it.
func New(o Options) *Builder {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	b := &Builder{options: o, latest: snapshot.NewLatest()}
	b.setLevels(o.Levels)
	return b
}

// Latest has the newest snapshot.
func (b *Builder) Latest() *snapshot.Latest { return b.latest }

// Run keeps the snapshot current until ctx ends. It makes none until all
// objects have been listed once: half a fabric would be a wrong one.
func (b *Builder) Run(ctx context.Context) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	changed := b.options.Source.Changed()
	var ready <-chan time.Time // Ends the pause after a change.
	for {
		b.turned.Store(b.options.Clock.Now().UnixNano())
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			b.step(ctx, false)
			if b.last != nil {
				changed, ready = nil, time.After(b.options.Pause)
			}
		case <-ready:
			changed, ready = b.options.Source.Changed(), nil
		case <-ticker.C:
			b.step(ctx, true)
		case levels := <-b.options.NewLevels:
			if slices.Equal(levels, b.levels) {
				continue
			}
			b.setLevels(levels)
			b.options.Log.InfoContext(ctx, "levels changed", "levels", len(levels))
			b.step(ctx, true)
		}
	}
}

// setLevels starts a new tree from the current nodes and reports.
func (b *Builder) setLevels(levels []fabric.Level) {
	b.fabric, b.levels, b.discovered = fabric.New(levels), levels, nil
	if b.last != nil {
		b.put(slices.SortedFunc(maps.Values(b.last.Nodes), func(x, y *informers.NodeState) int {
			return strings.Compare(x.Name, y.Name)
		}))
	}
}

// step takes what changed and publishes the snapshot that results. slow is the
// tick, when work is done that has time.
func (b *Builder) step(ctx context.Context, slow bool) {
	if !b.options.Source.Synced() {
		return
	}
	was := b.last
	if was == nil {
		was = &snapshot.Snapshot{}
	}
	changes := b.options.Source.Take()
	visible := b.apply(was.Nodes, &changes)
	now, contact := b.options.Clock.Now(), b.options.Source.Contact()
	next := snapshot.Snapshot{
		Tree: b.fabric.Snapshot(b.clock.now(now, changes.ReportContact)), Levels: b.levels, Spares: b.options.Spares,
		Nodes: was.Nodes.With(changes.Nodes), Gangs: was.Gangs.With(changes.Gangs),
		Generation: was.Generation, Mapped: was.Mapped,
	}
	if away(now, contact) {
		next.StaleSince = contact.UTC().Truncate(time.Second)
	}
	next.Discovery = b.discovery(was.Discovery, &next, slow)
	switch {
	case visible || next.Tree != was.Tree || !next.StaleSince.Equal(was.StaleSince):
		next.Generation++
		next.Mapped = next.Generation
	case len(changes.Gangs) > 0:
		next.Generation++
	case len(changes.Nodes) == 0 && maps.EqualFunc(next.Discovery, was.Discovery, slices.Equal):
		return
	}
	if next.Tree != was.Tree {
		b.options.Source.Suspects().Group(next.Tree.Groups())
	}
	b.logStale(ctx, was.StaleSince, next.StaleSince)
	if b.last == nil {
		b.options.Log.InfoContext(ctx, "first tree", "nodes", len(next.Nodes), "etag", next.Tree.ETag())
	}
	b.last = &next
	b.latest.Set(b.last)
}

func (b *Builder) logStale(ctx context.Context, was, since time.Time) {
	switch {
	case since.IsZero() == was.IsZero():
	case since.IsZero():
		b.options.Log.InfoContext(ctx, "API server recovered", "silent_since", was)
	default:
		b.options.Log.WarnContext(ctx, "API server silent on a watch, the tree is stale", "silent_since", since)
	}
}

// apply passes what changed to the fabric, and removes from changes what did
// not change after all. visible reports whether answers about nodes change.
func (b *Builder) apply(nodes snapshot.Table[*informers.NodeState], changes *informers.Changes) (visible bool) {
	var put []*informers.NodeState
	for _, name := range slices.Sorted(maps.Keys(changes.Nodes)) {
		now := changes.Nodes[name]
		was := nodes[name]
		if was == nil {
			was = &informers.NodeState{Name: name}
		}
		if now.Node == was.Node && now.Report == was.Report && (now.Used == was.Used || now.Empty()) {
			delete(changes.Nodes, name)
			continue
		}
		reported := !now.Report.SameReport(was.Report)
		if now.Node != was.Node || reported {
			put = append(put, now)
		} else if now.Believed() != nil {
			b.fabric.Heartbeat(name, now.Report.Heartbeat()) // It may be newer beside what topo-master wrote.
		}
		visible = visible || now.Used != was.Used || reported ||
			(now.Node == nil) != (was.Node == nil) || now.Node != was.Node && !now.Node.SameStatus(was.Node)
	}
	b.put(put)
	for name, at := range changes.Heartbeats {
		if n := nodes[name]; n != nil && n.Believed() != nil {
			b.fabric.Heartbeat(name, at)
		}
	}
	return visible
}

// put passes nodes to the fabric in the order of names, since neighbors by name
// are neighbors by cable.
func (b *Builder) put(list []*informers.NodeState) {
	nodes := make([]fabric.Node, 0, len(list))
	for _, s := range list {
		if s.Node == nil {
			b.fabric.Remove(s.Name)
			continue
		}
		n := fabric.Node{Name: s.Name, Ready: s.Node.Ready, Since: s.Node.Since, Names: s.Node.Groups()}
		if r := s.Believed(); r != nil {
			n.Report, n.Heartbeat = r.Report, r.Heartbeat()
		}
		nodes = append(nodes, n)
	}
	b.fabric.Put(nodes...)
}

// discovery returns the workers that discover the uplinks of each leaf, if any level is
// made by them.
func (b *Builder) discovery(was map[string][]string, next *snapshot.Snapshot, slow bool) map[string][]string {
	if was != nil && (!slow || next.Tree == b.discovered) {
		return was
	}
	b.discovered = next.Tree
	if !slices.ContainsFunc(b.levels, func(l fabric.Level) bool { return l.By == fabric.BySpine }) {
		return map[string][]string{}
	}
	return b.fabric.UplinkDiscovery()
}

const (
	// silence is the time for which the API server may send nothing on a watch: it sends
	// a bookmark about every minute.
	silence = 90 * time.Second
	// grace is the time that workers then have for their next heartbeat, since they could not write
	// while the API server was away.
	grace = 2 * time.Minute
)

// away reports whether a watch has been silent for too long; contact is when it
// last received anything, zero for never.
func away(now, contact time.Time) bool { return !contact.IsZero() && now.Sub(contact) > silence }

// heartbeatClock is the time by which heartbeats are checked. It stops while the
// watch of reports is silent: then a missing heartbeat is not the worker's fault.
type heartbeatClock struct {
	stopped time.Time // When it stopped, zero while it runs.
	until   time.Time // When it runs again, zero while the API server is away.
}

// now takes the time and when the API server last sent anything, zero for never.
func (c *heartbeatClock) now(now, contact time.Time) time.Time {
	isAway := away(now, contact)
	switch {
	case isAway && c.stopped.IsZero():
		c.stopped = contact.Add(silence)
	case isAway:
		c.until = time.Time{}
	case c.stopped.IsZero():
		return now
	case c.until.IsZero():
		c.until = now.Add(grace)
	case !now.Before(c.until):
		*c = heartbeatClock{}
		return now
	}
	return c.stopped
}
