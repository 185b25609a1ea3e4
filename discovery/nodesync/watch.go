package nodesync

import (
	"context"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
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
	// follow are the annotations that set followed.
	follow            []string
	changed, followed notify.Signal

	// mu guards the node, which is replaced and never modified, and gone, the UID
	// of the one that was deleted last, empty before.
	mu   sync.Mutex
	node *corev1.Node
	gone types.UID
}

// NewWatch returns a watch of the named Node; Run starts it. Followed receives
// when one of the annotations changed.
func NewWatch(client rest.Interface, name string, annotations ...string) *Watch {
	return &Watch{client: client, name: name, follow: annotations, changed: notify.New(), followed: notify.New()}
}

// Run watches until ctx ends. It returns nil: errors are retried.
func (w *Watch) Run(ctx context.Context) error {
	lw := cache.NewListWatchFromClient(w.client, "nodes", "", fields.OneTermEqualSelector("metadata.name", w.name))
	r := cache.NewReflectorWithOptions(lw, &corev1.Node{}, w, cache.ReflectorOptions{Name: "node"})
	r.RunWithContext(ctx)
	return nil
}

// Node returns the newest Node seen, nil before the first. Callers must not modify
// it.
func (w *Watch) Node() *corev1.Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.node
}

// Changed receives after what bears on labels, taints, cordoned or released GPUs
// changed.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Followed receives after one of the annotations that NewWatch named changed, and
// after the Node was seen for the first time or deleted.
func (w *Watch) Followed() <-chan struct{} { return w.followed }

// Keep takes a version that a write returned, so that the next comparison does
// not use the one before it. Older versions than the known one are ignored, and
// those of a Node that was deleted meanwhile.
func (w *Watch) Keep(node *corev1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.node != nil || w.gone == "" || node.UID != w.gone {
		w.keep(node)
	}
}

// keep stores a Node that is not older than the known one. Hold mu.
func (w *Watch) keep(node *corev1.Node) {
	if w.node != nil && node.UID == w.node.UID {
		order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, w.node.ResourceVersion)
		if err == nil && order < 0 {
			return
		}
	}
	w.node = node
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
// seconds; only labels, taints and some annotations are worth a signal.
func (w *Watch) Update(obj any) error {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	w.mu.Lock()
	before := w.node
	w.keep(slim(node))
	w.mu.Unlock()
	if before == nil || annotated(before, node, w.follow...) {
		w.followed.Notify()
	}
	if before == nil || !maps.Equal(before.Labels, node.Labels) ||
		annotated(before, node, wellknown.OwnedTaints, wellknown.DriverAbsentSince, wellknown.CordonedGPUs,
			wellknown.GPURelease) ||
		!equality.Semantic.DeepEqual(before.Spec.Taints, node.Spec.Taints) {
		w.changed.Notify()
	}
	return nil
}

// annotated reports whether one of the annotations changed.
func annotated(before, after *corev1.Node, keys ...string) bool {
	return slices.ContainsFunc(keys, func(key string) bool {
		old, had := before.Annotations[key]
		now, has := after.Annotations[key]
		return had != has || old != now
	})
}

// Delete is called by the reflector.
func (w *Watch) Delete(any) error {
	w.mu.Lock()
	if w.node != nil {
		w.gone = w.node.UID
	}
	w.node = nil
	w.mu.Unlock()
	w.followed.Notify()
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
