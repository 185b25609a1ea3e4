package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/informers"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

const (
	// parallel is the number of concurrent writes.
	parallel = 8
	// applyAttempts bounds the retries after conflicts: each drops at least one
	// key.
	applyAttempts = 4
	// maxWrites bounds the writes of one pass over a snapshot: a node may have moved since.
	maxWrites = 1024
)

// labels writes the labels of Nodes.
type labels struct {
	*Publisher
	client  metadata.ResourceInterface
	written map[string]written // By node.
}

// written records a write to a Node.
type written struct {
	// node is the version that was written to. The Node is written again only after the watch
	// brings another version.
	node *informers.Node
	// conflicts are the keys that another manager holds, with the value that
	// was rejected.
	conflicts map[string]string
	done      bool
}

func newLabels(p *Publisher) *labels {
	return &labels{
		Publisher: p, client: p.options.Objects.Resource(corev1.SchemeGroupVersion.WithResource("nodes")),
		written: map[string]written{},
	}
}

func (l *labels) sync(ctx context.Context, s *snapshot.Snapshot, full bool) error {
	if full {
		clear(l.written)
	}
	var begun []*written
	var writes []func() error
	for name, want := range export.Labels(s.Tree, l.options.Exports.Labels) {
		n := s.Nodes[name]
		if n == nil || n.Node == nil || !l.due(n.Node, want) {
			continue
		}
		if len(writes) > maxWrites {
			break
		}
		w := &written{node: n.Node}
		begun = append(begun, w)
		writes = append(writes, func() (err error) {
			w.conflicts, err = l.write(ctx, n.Node, want)
			w.done = err == nil
			return err
		})
	}
	err := run("label Nodes", writes)
	for _, w := range begun {
		if w.done {
			l.written[w.node.Name] = *w
		}
	}
	l.forget(s)
	return err
}

// due reports whether a Node has other labels than it should, apart from keys that
// another manager holds.
func (l *labels) due(n *informers.Node, want map[string]string) bool {
	last := l.written[n.Name]
	if last.node == n {
		return false
	}
	left := maps.Clone(want)
	for key, value := range last.conflicts {
		if left[key] == value {
			delete(left, key)
		}
	}
	for _, handle := range n.Labels {
		label := handle.Value()
		value, wanted := left[label.Key]
		switch {
		case !wanted && label.Owned, wanted && (!label.Owned || label.Value != value):
			return true
		}
		delete(left, label.Key)
	}
	return len(left) > 0
}

// write applies exactly these labels, less those that conflict, which it
// returns.
func (l *labels) write(ctx context.Context, n *informers.Node, want map[string]string) (map[string]string, error) {
	conflicts := map[string]string{}
	for range applyAttempts {
		err := l.apply(ctx, n, want)
		keys := conflictingKeys(err)
		// A conflict without keys: the Node has been replaced, which the watch
		// will show.
		if err == nil || apierrors.IsNotFound(err) || len(keys) == 0 && apierrors.IsConflict(err) {
			return conflicts, nil
		}
		dropped := false
		for _, key := range keys {
			if value, ok := want[key]; ok {
				conflicts[key], dropped = value, true
				delete(want, key)
			}
		}
		if !dropped {
			return nil, fmt.Errorf("label Node %s: %w", n.Name, err)
		}
	}
	return nil, fmt.Errorf("label Node %s: still in conflict after %d attempts", n.Name, applyAttempts)
}

// apply makes one server-side apply. The UID keeps it from creating a deleted Node.
func (l *labels) apply(ctx context.Context, n *informers.Node, want map[string]string) error {
	metadata := map[string]any{"name": n.Name, "uid": n.UID}
	if len(want) > 0 {
		metadata["labels"] = want
	}
	body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": metadata})
	if err != nil {
		return fmt.Errorf("encode labels: %w", err)
	}
	_, err = l.client.Patch(ctx, n.Name, types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: FieldManager, Force: new(l.options.Force)})
	return l.metrics.count("labels", err)
}

// forget drops the records of deleted Nodes.
func (l *labels) forget(s *snapshot.Snapshot) {
	conflicts := 0
	for name, w := range l.written {
		if n := s.Nodes[name]; n == nil || n.Node == nil {
			delete(l.written, name)
			continue
		}
		conflicts += len(w.conflicts)
	}
	l.metrics.conflicts.Set(float64(conflicts))
}

// conflictingKeys returns the label keys that another field manager holds, out of
// the API server's answer: one cause per field, ".metadata.labels.KEY".
func conflictingKeys(err error) []string {
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	var out []string
	for _, cause := range status.Status().Details.Causes {
		if key, ok := strings.CutPrefix(cause.Field, ".metadata.labels."); ok &&
			cause.Type == metav1.CauseTypeFieldManagerConflict {
			out = append(out, key)
		}
	}
	return out
}

// run runs at most maxWrites of some writes, some at a time. It fails with errUnfinished if there are more.
func run(what string, writes []func() error) error {
	var group errgroup.Group
	group.SetLimit(parallel)
	faults := make([]error, min(len(writes), maxWrites))
	for i := range faults {
		group.Go(func() error {
			faults[i] = writes[i]()
			return nil
		})
	}
	_ = group.Wait() // Errors are in faults.
	faults = slices.DeleteFunc(faults, func(err error) bool { return err == nil })
	switch {
	case len(faults) > 0:
		return fmt.Errorf("%s: %d failed, one of them: %w", what, len(faults), faults[0])
	case len(writes) > maxWrites:
		return errUnfinished
	}
	return nil
}
