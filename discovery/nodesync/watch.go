package nodesync

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/internal/notify"
)

// Watch keeps the newest version of one Node. It is the store of a client-go
// reflector, which relists and backs off as the field expects.
type Watch struct {
	client rest.Interface
	name   string
	// changed has capacity one: many changes make one signal.
	changed notify.Signal

	// mu guards what follows. The node is replaced and never modified.
	mu        sync.Mutex
	node      *corev1.Node
	followers []follower
}

// follower is notified of some annotations.
type follower struct {
	keys    []string
	changed notify.Signal
}

// NewWatch returns a watch of the named Node; Run starts it.
func NewWatch(client rest.Interface, name string) *Watch {
	return &Watch{client: client, name: name, changed: notify.New()}
}

// Run watches until ctx ends. It returns nil: errors are retried.
func (w *Watch) Run(ctx context.Context) error {
	lw := cache.NewListWatchFromClient(w.client, "nodes", "", fields.OneTermEqualSelector("metadata.name", w.name))
	r := cache.NewReflectorWithOptions(lw, &corev1.Node{}, w, cache.ReflectorOptions{Name: "node"})
	r.RunWithContext(ctx)
	return nil
}

// Node is the newest Node seen, nil before the first. Callers must not modify
// it.
func (w *Watch) Node() *corev1.Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.node
}

// Changed receives after the Node changed.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Follow receives after one of these annotations changed, and after the Node
// was seen for the first time or deleted. It has one reader and a capacity of
// one.
func (w *Watch) Follow(annotations ...string) <-chan struct{} {
	f := follower{keys: annotations, changed: notify.New()}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.followers = append(w.followers, f)
	return f.changed
}

// notify signals the followers of what changed.
func (w *Watch) notify(before, after *corev1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.followers {
		if before == nil || after == nil || slices.ContainsFunc(f.keys, func(key string) bool {
			old, had := before.Annotations[key]
			now, has := after.Annotations[key]
			return had != has || old != now
		}) {
			f.changed.Notify()
		}
	}
}

// Keep takes a version that a write returned, so that the next comparison does
// not use the one before it. Older versions than the known one are ignored.
func (w *Watch) Keep(node *corev1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.node == nil || node.UID != w.node.UID || !older(node.ResourceVersion, w.node.ResourceVersion) {
		w.node = node
	}
}

// older compares resource versions as the numbers that they are since
// Kubernetes 1.35; what is no number is never older.
func older(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX == nil && errY == nil && x < y
}

// slim drops the status, which these daemons never read and which is most of a
// Node.
func slim(node *corev1.Node) *corev1.Node {
	n := *node
	n.Status = corev1.NodeStatus{}
	return &n
}

// Add is called by the reflector.
func (w *Watch) Add(obj any) error { return w.Update(obj) }

// Update is called by the reflector. A kubelet reports its status every few
// seconds; only labels, taints and cordoned GPUs are worth a signal.
func (w *Watch) Update(obj any) error {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	before := w.Node()
	w.Keep(slim(node))
	w.notify(before, node)
	if before == nil || !maps.Equal(before.Labels, node.Labels) ||
		before.Annotations[wellknown.OwnedTaints] != node.Annotations[wellknown.OwnedTaints] ||
		before.Annotations[wellknown.CordonedGPUs] != node.Annotations[wellknown.CordonedGPUs] ||
		!equality.Semantic.DeepEqual(before.Spec.Taints, node.Spec.Taints) {
		w.changed.Notify()
	}
	return nil
}

// Delete is called by the reflector.
func (w *Watch) Delete(any) error {
	w.mu.Lock()
	w.node = nil
	w.mu.Unlock()
	w.notify(nil, nil)
	w.changed.Notify()
	return nil
}

// Replace is called by the reflector after a list.
func (w *Watch) Replace(list []any, _ string) error {
	if len(list) == 0 {
		return w.Delete(nil)
	}
	return w.Update(list[0])
}

// Resync is called by the reflector and has nothing to do here.
func (w *Watch) Resync() error { return nil }
