package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

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
	// parallel is how many writes are under way at a time.
	parallel = 8
	// applyAttempts bounds the answers to conflicts: each attempt drops at
	// least one key.
	applyAttempts = 4
	// turn is how long one view is written from: a node may have moved since.
	turn = 10 * time.Second
)

// labels writes the tier labels of Nodes.
type labels struct {
	*Publisher
	client metadata.ResourceInterface
	turn   time.Duration

	// mu guards the rest, by node.
	mu sync.Mutex
	// sent is the Node as it was when we wrote: until the watch shows another
	// there is nothing to add.
	sent map[string]*informers.Node
	// yielded are the keys that another manager holds, with the value that
	// was refused.
	yielded map[string]map[string]string
}

func newLabels(p *Publisher) *labels {
	return &labels{
		Publisher: p, client: p.options.Objects.Resource(corev1.SchemeGroupVersion.WithResource("nodes")),
		turn: turn, sent: map[string]*informers.Node{}, yielded: map[string]map[string]string{},
	}
}

func (l *labels) sync(ctx context.Context, v *snapshot.Snapshot, full bool) error {
	if full {
		clear(l.sent)
		clear(l.yielded)
	}
	labeler := export.NewLabeler(nil, nil)
	if l.options.Exports.Labels {
		labeler = export.NewLabeler(export.TiersOf(v.Levels, v.Tree), l.options.Templates)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	var faults sync.Map
	var unfinished error
	end := time.Now().Add(l.turn)
	for name, want := range labeler.All(v.Tree) {
		d, _ := v.Nodes.Of(name)
		if d.Node == nil || !l.due(d.Node, want) || groupCtx.Err() != nil {
			continue
		}
		if time.Now().After(end) {
			unfinished = errUnfinished
			break
		}
		group.Go(func() error {
			if err := l.write(groupCtx, d.Node, want); err != nil {
				faults.Store(name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	l.tidy(v)
	return errors.Join(firstOf(&faults, "label Nodes"), unfinished)
}

// due tells whether a Node has other labels than it should, as far as it is up
// to us.
func (l *labels) due(n *informers.Node, want map[string]string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sent[n.Name] == n {
		return false
	}
	left := maps.Clone(want)
	for key, value := range l.yielded[n.Name] {
		if left[key] == value {
			delete(left, key)
		}
	}
	for _, label := range n.Labels {
		value, wanted := left[label.Key]
		switch {
		case !wanted && label.Owned, wanted && (!label.Owned || label.Value != value):
			return true
		}
		delete(left, label.Key)
	}
	return len(left) > 0
}

// write applies exactly these labels, less those that conflict.
func (l *labels) write(ctx context.Context, n *informers.Node, want map[string]string) error {
	refused := map[string]string{}
	for range applyAttempts {
		err := l.apply(ctx, n, want)
		if err == nil || apierrors.IsNotFound(err) {
			l.note(n, refused)
			return nil
		}
		keys := conflicts(err)
		if len(keys) == 0 && apierrors.IsConflict(err) {
			l.note(n, refused)
			return nil // It is another Node by now; the watch will say so.
		}
		dropped := false
		for _, key := range keys {
			if value, ours := want[key]; ours {
				refused[key], dropped = value, true
				delete(want, key)
			}
		}
		if !dropped {
			return fmt.Errorf("label Node %s: %w", n.Name, err)
		}
	}
	return fmt.Errorf("label Node %s: still in conflict after %d attempts", n.Name, applyAttempts)
}

// apply is one server-side apply. The UID keeps it from making a Node that is
// gone.
func (l *labels) apply(ctx context.Context, n *informers.Node, want map[string]string) error {
	about := map[string]any{"name": n.Name, "uid": n.UID}
	if len(want) > 0 {
		about["labels"] = want
	}
	body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": about})
	if err != nil {
		return fmt.Errorf("encode labels: %w", err)
	}
	_, err = l.client.Patch(ctx, n.Name, types.ApplyPatchType, body,
		metav1.PatchOptions{FieldManager: FieldManager, Force: new(l.options.Force)})
	return l.metrics.count("labels", err)
}

func (l *labels) note(n *informers.Node, refused map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent[n.Name] = n
	delete(l.yielded, n.Name)
	if len(refused) > 0 {
		l.yielded[n.Name] = refused
	}
}

// tidy forgets Nodes that are gone.
func (l *labels) tidy(v *snapshot.Snapshot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	conflicts := 0
	for name, n := range l.sent {
		if d, _ := v.Nodes.Of(name); d.Node != n {
			delete(l.sent, name)
		}
		if d, _ := v.Nodes.Of(name); d.Node == nil {
			delete(l.yielded, name)
		}
	}
	for _, refused := range l.yielded {
		conflicts += len(refused)
	}
	l.metrics.conflicts.Set(float64(conflicts))
}

// conflicts are the label keys that another field manager holds, out of the API
// server's answer: one cause a field, ".metadata.labels.KEY".
func conflicts(err error) []string {
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

// firstOf is one of many faults, and their number.
func firstOf(faults *sync.Map, what string) error {
	n := 0
	var first error
	faults.Range(func(_, value any) bool {
		if err, ok := value.(error); ok && first == nil {
			first = err
		}
		n++
		return true
	})
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%s: %d failed, one of them: %w", what, n, first)
}
