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
const lull = 30 * time.Second

// publish makes the Node say what it should, if it does not. It says when to
// look again.
func (b *Bridge) publish(ctx context.Context, node *corev1.Node, state *State) (again time.Duration, err error) {
	has, there := node.Annotations[wellknown.HAMiCards]
	want := b.wanted(has, there, state)
	switch {
	case want == nil && !there, want != nil && there && *want == has:
		return glance, nil
	case want != nil && there && alike(has, *want):
		if rest := lull - time.Since(b.wrote); rest > 0 {
			return rest, nil
		}
	}
	if err := b.Writer.AnnotateNode(ctx, "", map[string]*string{wellknown.HAMiCards: want}); err != nil {
		return glance, fmt.Errorf("publish cards for HAMi: %w", err)
	}
	b.wrote = time.Now()
	b.Log.DebugContext(ctx, "cards are published for HAMi",
		"open", state.Open, "cards", len(state.Cards), "removed", want == nil)
	return glance, nil
}

// wanted is what the annotation should be, nil for none. HAMi drops the cards
// of a node without one within 15 s, and goes on counting pods of one whose
// cards are unhealthy. So a node that is closed for a moment keeps it, and one
// that has never been open gets none.
func (b *Bridge) wanted(has string, there bool, state *State) *string {
	switch {
	case !state.Enabled, len(state.Cards) == 0:
		if there && !b.wroteOnce(has) {
			// Somebody else's: the node may have cards of another maker.
			return &has
		}
		return nil
	case !state.Open && !there:
		return nil
	}
	return new(Cards(state.Cards, state.Open))
}

// wroteOnce tells whether an annotation is of this machine.
func (b *Bridge) wroteOnce(has string) bool {
	list, err := allocation.ParseHAMiNode(has)
	if err != nil {
		return false
	}
	for i := range list {
		if b.Ours(list[i].UUID) {
			return true
		}
	}
	return false
}
