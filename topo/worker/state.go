package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// A heartbeat follows the one before after 60 to 90 s, so that the nodes of a
// cluster do not write together.
const (
	beatEvery  = 60 * time.Second
	beatSpread = 30 * time.Second
)

// published is what is known about the object in the API server.
type published struct {
	loaded bool
	// there is false if there is no object.
	there bool
	owner types.UID
	// sent is the spec applied last, answered and seen are the API server's
	// version of it, after that write and now: it may drop fields that its
	// schema does not know, and that is no reason to write again.
	sent, answered, seen v1alpha1.NodeTopologySpec
	// leaves is the status' list walk.
	leaves   []string
	nextBeat time.Time
}

// beatTimer fires when a heartbeat is due.
func (p *published) beatTimer() <-chan time.Time {
	if !p.there {
		return nil
	}
	return time.After(max(time.Until(p.nextBeat), time.Second))
}

// load reads what is published, once: it is also the memory of an earlier
// worker. An object of an earlier Node of this name is none.
func (w *Worker) load(ctx context.Context) error {
	s := &w.state
	if s.loaded {
		return nil
	}
	nt, err := w.Publisher.Load(ctx)
	if err != nil || nt == nil {
		s.loaded = err == nil
		return err
	}
	node, err := w.readNode(ctx)
	if err != nil {
		return err
	}
	w.memory = nt.Spec
	s.sent, s.answered, s.seen, s.leaves = nt.Spec, nt.Spec, nt.Spec, nt.Status.Walk
	for _, o := range nt.OwnerReferences {
		s.owner = o.UID
	}
	if at := nt.Status.HeartbeatTime; at != nil {
		// A clock that was set back delays no heartbeat for longer.
		s.nextBeat = time.Now().Add(min(beatEvery-time.Since(at.Time), beatEvery))
	}
	s.loaded, s.there = true, s.owner == node
	return nil
}

// readNode reads the Node's labels, and returns its UID.
func (w *Worker) readNode(ctx context.Context) (types.UID, error) {
	node, err := w.Publisher.Node(ctx)
	if err != nil {
		return "", err
	}
	w.labels, w.labelsAt = node.Labels, time.Now()
	return node.UID, nil
}

// publish writes the spec if it is not what stands there, and the heartbeat if
// it is due.
func (w *Worker) publish(ctx context.Context, spec *v1alpha1.NodeTopologySpec) error {
	if err := w.apply(ctx, spec); err != nil {
		return err
	}
	w.Metrics.isReady.Store(true)
	if time.Now().Before(w.state.nextBeat) {
		return nil
	}
	err := w.beat(ctx)
	if errors.Is(err, errGone) {
		// Deleted by hand, or collected with an earlier Node.
		if err = w.apply(ctx, spec); err == nil {
			err = w.beat(ctx)
		}
	}
	return err
}

func (w *Worker) apply(ctx context.Context, spec *v1alpha1.NodeTopologySpec) (err error) {
	s := &w.state
	if s.there && equality.Semantic.DeepEqual(*spec, s.sent) && equality.Semantic.DeepEqual(s.seen, s.answered) {
		return nil
	}
	if !s.there {
		if s.owner, err = w.readNode(ctx); err != nil {
			return err
		}
	}
	nt, err := w.Publisher.Apply(ctx, s.owner, spec)
	if err != nil {
		return err
	}
	s.there, s.sent, s.answered, s.seen, s.leaves = true, *spec, nt.Spec, nt.Spec, nt.Status.Walk
	w.Metrics.writes.Inc()
	w.log(ctx, spec)
	return nil
}

// errGone means that the object is no longer there.
var errGone = errors.New("the NodeTopology is gone")

// beat writes the heartbeat. The answer has the leaves of which to discover
// the uplinks, and shows whether another writer changed the spec.
func (w *Worker) beat(ctx context.Context) error {
	s := &w.state
	nt, err := w.Publisher.Beat(ctx, w.passed)
	if err != nil {
		return err
	}
	if nt == nil {
		s.there = false
		return fmt.Errorf("%w: %s", errGone, w.NodeName)
	}
	w.Metrics.beats.Inc()
	s.nextBeat = time.Now().Add(beatEvery + rand.N(beatSpread)) //nolint:gosec // Not for secrets.
	if !slices.Equal(s.leaves, nt.Status.Walk) || !equality.Semantic.DeepEqual(nt.Spec, s.answered) {
		w.Changed.Notify()
	}
	s.seen, s.leaves = nt.Spec, nt.Status.Walk
	return nil
}

// log reports what was published.
func (w *Worker) log(ctx context.Context, spec *v1alpha1.NodeTopologySpec) {
	known := 0
	for i := range spec.Rails {
		if spec.Rails[i].Switch != nil {
			known++
		}
	}
	w.Log.InfoContext(ctx, "topology published", "rails", len(spec.Rails), "switches_known", known,
		"nvlink_domain", spec.NVLinkDomain, "path", spec.Path, "uplinks", len(spec.Uplinks), "skipped", len(spec.Skipped))
	for _, s := range spec.Skipped {
		w.Log.DebugContext(ctx, "skipped", "name", s.Name, "reason", s.Reason)
	}
}
