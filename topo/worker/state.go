package worker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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
	nextBeat             time.Time
}

// beatTimer fires when a heartbeat is due.
func (p *published) beatTimer() <-chan time.Time {
	if !p.there {
		return nil
	}
	return time.After(max(time.Until(p.nextBeat), time.Second))
}

// load reads what is published, once: it is also the memory of an earlier
// worker.
func (w *Worker) load(ctx context.Context) error {
	if w.state.loaded {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	nt, err := w.Store.Load(ctx)
	if err != nil {
		return err
	}
	w.state.loaded = true
	if nt == nil {
		return nil
	}
	w.memory = nt.Spec
	w.uplinks.remember(nt)
	w.state.there = true
	w.state.sent, w.state.answered, w.state.seen = nt.Spec, nt.Spec, nt.Spec
	for _, o := range nt.OwnerReferences {
		w.state.owner = o.UID
	}
	if at := nt.Status.HeartbeatTime; at != nil && time.Since(at.Time) < beatEvery {
		w.state.nextBeat = time.Now().Add(min(beatEvery-time.Since(at.Time), beatEvery))
	}
	return w.checkOwner(ctx)
}

// checkOwner forgets the object if it belongs to an earlier Node of this name.
func (w *Worker) checkOwner(ctx context.Context) error {
	node, err := w.Store.Node(ctx)
	if err != nil {
		w.state.loaded = false
		return err
	}
	w.labels, w.labelsAt = node.Labels, time.Now()
	if w.state.owner != node.UID {
		w.state.there = false
	}
	return nil
}

// publish writes the spec if it is not what stands there, and the heartbeat if
// it is due.
func (w *Worker) publish(ctx context.Context, spec *v1alpha1.NodeTopologySpec) error {
	if err := w.apply(ctx, spec); err != nil {
		w.Metrics.failed()
		return err
	}
	w.Metrics.ready()
	if time.Now().Before(w.state.nextBeat) {
		return nil
	}
	err := w.beatNow(ctx)
	if errors.Is(err, errGone) {
		// Deleted by hand, or collected with an earlier Node.
		if err = w.apply(ctx, spec); err == nil {
			err = w.beatNow(ctx)
		}
	}
	if err != nil {
		w.Metrics.failed()
	}
	return err
}

func (w *Worker) apply(ctx context.Context, spec *v1alpha1.NodeTopologySpec) error {
	s := &w.state
	if s.there && equality.Semantic.DeepEqual(*spec, s.sent) && equality.Semantic.DeepEqual(s.seen, s.answered) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	if !s.there {
		node, err := w.Store.Node(ctx)
		if err != nil {
			return err
		}
		s.owner, w.labels, w.labelsAt = node.UID, node.Labels, time.Now()
	}
	nt, err := w.Store.Apply(ctx, s.owner, spec)
	if err != nil {
		return err
	}
	w.reportChange(ctx, spec)
	s.there, s.sent = true, *spec.DeepCopy()
	s.answered, s.seen = nt.Spec, nt.Spec
	w.uplinks.want(nt.Status.Walk)
	w.Metrics.wrote()
	return nil
}

// errGone means that the object is no longer there.
var errGone = errors.New("the NodeTopology is gone")

// beatNow writes the heartbeat. The answer has the leaves of which to discover
// the uplinks, and shows whether another writer changed the spec.
func (w *Worker) beatNow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	nt, err := w.Store.Beat(ctx, w.passed)
	if err != nil {
		return err
	}
	if nt == nil {
		w.state.there = false
		return fmt.Errorf("%w: %s", errGone, w.NodeName)
	}
	w.Metrics.heartbeat()
	w.state.nextBeat = time.Now().Add(beatEvery + rand.N(beatSpread)) //nolint:gosec // Not for secrets.
	w.state.seen = nt.Spec
	changed := w.uplinks.want(nt.Status.Walk)
	if changed || !equality.Semantic.DeepEqual(w.state.seen, w.state.answered) {
		w.Trigger()
	}
	return nil
}

// reportChange logs what is different from what was sent before.
func (w *Worker) reportChange(ctx context.Context, spec *v1alpha1.NodeTopologySpec) {
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
