package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// maxWalk is how many leaves one worker may get: NodeTopology's bound.
const maxWalk = 32

// walks writes status.walk of NodeTopologies.
type walks struct {
	*Publisher
	client metadata.ResourceInterface
	sent   map[string]*informers.Report
}

func newWalks(p *Publisher) *walks {
	return &walks{
		Publisher: p, client: p.options.Objects.Resource(v1alpha1.Resource()), sent: map[string]*informers.Report{},
	}
}

func (w *walks) sync(ctx context.Context, v *snapshot.Snapshot, full bool) error {
	if v.Walks == nil {
		return nil // Nobody has worked them out yet.
	}
	if full {
		clear(w.sent)
	}
	var first error
	failed := 0
	for name, d := range v.Nodes.All() {
		if d.Report == nil || w.sent[name] == d.Report {
			continue
		}
		want := v.Walks[name]
		if d.Believed() == nil {
			want = nil
		}
		want = want[:min(len(want), maxWalk)]
		if slices.Equal(want, d.Report.Walk) {
			continue
		}
		if err := w.write(ctx, name, want); err != nil {
			if failed++; first == nil {
				first = err
			}
			continue
		}
		w.sent[name] = d.Report
	}
	for name, r := range w.sent {
		if d, _ := v.Nodes.Of(name); d.Report != r {
			delete(w.sent, name)
		}
	}
	if first != nil {
		return fmt.Errorf("name who walks: %d failed, one of them: %w", failed, first)
	}
	return nil
}

// write replaces the list and touches nothing else: the heartbeat beside it is
// the worker's.
func (w *walks) write(ctx context.Context, name string, leaves []string) error {
	body, err := json.Marshal(map[string]any{"status": map[string]any{"walk": leaves}}) // null removes the field.
	if err != nil {
		return fmt.Errorf("encode walks: %w", err)
	}
	options := metav1.PatchOptions{FieldManager: FieldManager}
	_, err = w.client.Patch(ctx, name, types.MergePatchType, body, options, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err := w.metrics.count("walks", err); err != nil {
		return fmt.Errorf("write walks of NodeTopology %s: %w", name, err)
	}
	return nil
}
