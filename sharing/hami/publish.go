package hami

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// publishInterval is how long the available amounts may be out of date. HAMi
// does not read them, and a write of the Node for every pod that starts or ends
// would load the API servers of large clusters.
const publishInterval = 30 * time.Second

// publish writes the Node's annotation if it differs. It returns the time until
// the next check.
func (b *Plugin) publish(ctx context.Context, node *corev1.Node, state *State) (again time.Duration, err error) {
	has, there := node.Annotations[wellknown.HAMiCards]
	want := b.annotation(has, there, state)
	switch {
	case want == nil && !there, want != nil && there && *want == has:
		return pollInterval, nil
	case want != nil && there && sameButAvailable(has, *want):
		if rest := publishInterval - time.Since(b.wrote); rest > 0 {
			return rest, nil
		}
	}
	if err := b.Writer.AnnotateNode(ctx, "", map[string]*string{wellknown.HAMiCards: want}); err != nil {
		return pollInterval, fmt.Errorf("publish GPUs for HAMi: %w", err)
	}
	b.wrote = time.Now()
	b.Log.DebugContext(ctx, "published GPUs for HAMi",
		"open", state.Open, "gpus", len(state.GPUs), "removed", want == nil)
	return pollInterval, nil
}

// annotation is the wanted value, nil for none. HAMi drops the GPUs
// of a node without one within 15 s, and goes on counting pods of one whose
// GPUs are unhealthy. So a node that is closed for a moment keeps it, and one
// that has never been open gets none.
func (b *Plugin) annotation(has string, there bool, state *State) *string {
	switch {
	case !state.Enabled, len(state.GPUs) == 0:
		if there && !b.isLocal(has) {
			// Another plugin's: the node may have GPUs of another vendor.
			return &has
		}
		return nil
	case !state.Open && !there:
		return nil
	}
	return new(Annotation(state.GPUs, state.Open))
}

// isLocal reports whether an annotation names a GPU of this machine.
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
