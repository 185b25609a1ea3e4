package hami

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// lull is how long what is left of cards may be out of date. HAMi does not
// read it, and a write of the Node for every pod that comes and goes is what
// API servers of large clusters suffer from.
const publishInterval = 30 * time.Second

// publish makes the Node say what it should, if it does not. It says when to
// look again.
func (b *Plugin) publish(ctx context.Context, node *corev1.Node, state *State) (again time.Duration, err error) {
	has, there := node.Annotations[wellknown.HAMiGPUs]
	want := b.annotation(has, there, state)
	switch {
	case want == nil && !there, want != nil && there && *want == has:
		return pollInterval, nil
	case want != nil && there && sameButAvailable(has, *want):
		if rest := publishInterval - time.Since(b.wrote); rest > 0 {
			return rest, nil
		}
	}
	if err := b.Writer.AnnotateNode(ctx, "", map[string]*string{wellknown.HAMiGPUs: want}); err != nil {
		return pollInterval, fmt.Errorf("publish cards for HAMi: %w", err)
	}
	b.wrote = time.Now()
	b.Log.DebugContext(ctx, "cards are published for HAMi",
		"open", state.Open, "cards", len(state.GPUs), "removed", want == nil)
	return pollInterval, nil
}

// wanted is what the annotation should be, nil for none. HAMi drops the cards
// of a node without one within 15 s, and goes on counting pods of one whose
// cards are unhealthy. So a node that is closed for a moment keeps it, and one
// that has never been open gets none.
func (b *Plugin) annotation(has string, there bool, state *State) *string {
	switch {
	case !state.Enabled, len(state.GPUs) == 0:
		if there && !b.isLocal(has) {
			// Somebody else's: the node may have cards of another maker.
			return &has
		}
		return nil
	case !state.Open && !there:
		return nil
	}
	return new(Annotation(state.GPUs, state.Open))
}

// wroteOnce tells whether an annotation is of this machine.
func (b *Plugin) isLocal(has string) bool {
	list, err := allocation.ParseHAMiNode(has)
	if err != nil {
		return false
	}
	for i := range list {
		if b.IsLocal(list[i].UUID) {
			return true
		}
	}
	return false
}
