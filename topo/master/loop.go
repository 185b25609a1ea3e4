package master

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// loop is what one goroutine knows.
type loop struct {
	*Master
	fabric *fabric.Builder
	levels []fabric.Level
	draft  snapshot.Draft
	// pods are those with GPUs or in a gang, used the sums of GPUs by node.
	pods  map[string]informers.Pod
	used  map[string]int32
	gangs gangs
	// heard is when the API server last said anything about reports.
	heard time.Time
	clock clock
	// again are the nodes that the fabric has to be told of.
	again map[string]struct{}

	generation, mapped uint64
	// last is what was published last; walked is the tree that its walks are
	// of.
	last   *snapshot.Snapshot
	walked *fabric.Snapshot
}

func newLoop(m *Master) (*loop, error) {
	l := &loop{Master: m, pods: map[string]informers.Pod{}, used: map[string]int32{}, again: map[string]struct{}{}}
	return l, l.rebuild(m.options.Levels)
}

// rebuild starts a new tree with other levels, of what is known.
func (l *loop) rebuild(levels []fabric.Level) error {
	m, err := fabric.New(fabric.Config{Levels: levels, StaleAfter: l.options.StaleAfter})
	if err != nil {
		return err
	}
	l.fabric, l.levels, l.walked = m, levels, nil
	l.draft.Names(func(name string, _ snapshot.Detail) { l.again[name] = struct{}{} })
	l.tell()
	return nil
}

// step takes what changed and publishes what came of it. slow is the tick, when
// work is done that has time.
func (l *loop) step(ctx context.Context, slow bool) {
	if !l.options.Source.Synced() {
		return
	}
	shown, regrouped := l.take()
	now, contact := l.options.Now(), l.options.Source.Contact()
	tree := l.fabric.Snapshot(l.clock.now(now, l.heard))
	next := snapshot.Snapshot{Tree: tree, Levels: l.levels, CountsPods: l.options.CountsPods, Nodes: l.draft.Table()}
	if away(now, contact) {
		next.StaleSince = contact.UTC().Truncate(time.Second)
	}
	if l.options.CountsPods {
		next.Gangs = l.gangs.draft.Table()
	}
	next.Walks = l.walks(tree, slow)
	l.tellStale(ctx, next.StaleSince)
	switch {
	case l.last == nil || shown || tree != l.last.Tree || !next.StaleSince.Equal(l.last.StaleSince):
		l.generation++
		l.mapped = l.generation
	case regrouped:
		l.generation++
	case next.Nodes == l.last.Nodes && sameMap(next.Walks, l.last.Walks):
		return
	}
	next.Generation, next.Mapped = l.generation, l.mapped
	if l.last == nil {
		l.options.Log.InfoContext(ctx, "first tree", "nodes", l.fabric.Len(), "etag", tree.ETag())
	}
	l.last = l.last.Next(next)
	l.publish(l.last)
}

// tellStale logs when the API server goes away and comes back.
func (l *loop) tellStale(ctx context.Context, since time.Time) {
	switch {
	case l.last == nil || since.IsZero() == l.last.StaleSince.IsZero():
	case since.IsZero():
		l.options.Log.InfoContext(ctx, "the API server is back", "silent_since", l.last.StaleSince)
	default:
		l.options.Log.WarnContext(ctx, "the API server is silent on a watch, the map becomes old", "silent_since", since)
	}
}

// take applies all changes; shown tells whether any of them shows in the map,
// regrouped whether any gang changed.
func (l *loop) take() (shown, regrouped bool) {
	batch := l.options.Source.Take()
	l.heard = batch.Heard
	// Pods first: they change the numbers that nodes are shown with.
	shown = l.takePods(batch.Pods)
	regrouped = l.gangs.settle()
	shown = l.takeNodes(batch.Nodes) || shown
	shown = l.takeReports(batch.Reports) || shown
	l.tell()
	return shown, regrouped
}

func (l *loop) takeNodes(c informers.Changes[informers.Node]) bool {
	if c.All {
		l.draft.Names(func(name string, d snapshot.Detail) {
			if c.Changed[name] == nil && d.Node != nil {
				c.Changed[name] = nil
			}
		})
	}
	shown := false
	for name, node := range c.Changed {
		d, _ := l.draft.Of(name)
		was := d.Node
		switch {
		case was == nil && node == nil, was != nil && node != nil && was.Same(node):
			continue
		}
		shown = shown || was == nil || node == nil || !was.Shows(node)
		d.Node, d.Used = node, l.used[name]
		l.draft.Set(name, d)
		l.again[name] = struct{}{}
	}
	return shown
}

func (l *loop) takeReports(c informers.Changes[informers.Report]) bool {
	if c.All {
		l.draft.Names(func(name string, d snapshot.Detail) {
			if c.Changed[name] == nil && d.Report != nil {
				c.Changed[name] = nil
			}
		})
	}
	shown := false
	for name, report := range c.Changed {
		d, _ := l.draft.Of(name)
		was := d.Report
		if was == nil && report == nil {
			continue
		}
		if was != nil && report != nil && was.SameSpec(report) {
			was.Beat(report.Heartbeat())
			if d.Believed() != nil {
				l.fabric.Heartbeat(name, was.Heartbeat())
			}
			continue
		}
		d.Report, shown = report, true
		l.draft.Set(name, d)
		l.again[name] = struct{}{}
	}
	return shown
}

// takePods keeps what each pod holds, the sum for its node, and its gang.
func (l *loop) takePods(c informers.Changes[informers.Pod]) bool {
	if c.All {
		for key := range l.pods {
			if c.Changed[key] == nil {
				c.Changed[key] = nil
			}
		}
	}
	sums := map[string]int32{}
	for key, pod := range c.Changed {
		l.takePod(key, pod, sums)
	}
	shown := false
	for name, change := range sums {
		if name == "" || change == 0 {
			continue
		}
		if l.used[name] += change; l.used[name] == 0 {
			delete(l.used, name)
		}
		if d, ok := l.draft.Of(name); ok {
			d.Used, shown = l.used[name], true
			l.draft.Set(name, d)
		}
	}
	return shown
}

// takePod takes one pod, nil if it is gone, and adds what that changes to the sums
// of its nodes.
func (l *loop) takePod(key string, pod *informers.Pod, sums map[string]int32) {
	was, had := l.pods[key]
	if pod == nil {
		pod = &informers.Pod{}
		delete(l.pods, key)
	} else {
		l.pods[key] = *pod
	}
	if had && was.Same(pod) {
		return
	}
	sums[was.Node] -= was.GPUs
	sums[pod.Node] += pod.GPUs
	l.gangs.move(key, was.Member, pod.Member)
}

// tell tells the fabric what is known of nodes: by name, since neighbors by name
// are neighbors by cable, and a part at a time, since reports are large.
func (l *loop) tell() {
	const part = 512
	var nodes []fabric.Node
	for names := range slices.Chunk(slices.Sorted(maps.Keys(l.again)), part) {
		nodes = nodes[:0]
		for _, name := range names {
			d, _ := l.draft.Of(name)
			if d.Node == nil {
				l.fabric.Remove(name)
				continue
			}
			n := fabric.Node{Name: name, Ready: d.Node.Ready, Since: d.Node.Since, Names: d.Node.Groups()}
			if r := d.Believed(); r != nil {
				n.Report, n.Heartbeat = r.Spec(), r.Heartbeat()
			}
			nodes = append(nodes, n)
		}
		l.fabric.Put(nodes...)
	}
	l.again = map[string]struct{}{} // Not cleared: that of a first tree is large.
}

// walks says who walks which leaf, if anybody wants to know and any level is
// made by it.
func (l *loop) walks(tree *fabric.Snapshot, slow bool) map[string][]string {
	if !l.wantWalks.Load() {
		l.walked = nil
		return nil
	}
	if l.last != nil && l.last.Walks != nil && (!slow || tree == l.walked) {
		return l.last.Walks
	}
	l.walked = tree
	bySpine := false
	for _, level := range l.levels {
		bySpine = bySpine || level.By == fabric.BySpine
	}
	if !bySpine {
		return map[string][]string{}
	}
	return l.fabric.UplinkDiscovery()
}

// sameMap compares what walks returns: a new map only if it was made anew.
func sameMap(a, b map[string][]string) bool {
	if len(a) != len(b) || (a == nil) != (b == nil) {
		return false
	}
	for node, leaves := range a {
		other, ok := b[node]
		if !ok || strings.Join(leaves, " ") != strings.Join(other, " ") {
			return false
		}
	}
	return true
}
