package informers

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Change is an Event about a cable of a node: found wrong, or as expected again.
type Change struct {
	Time time.Time `json:"time"`
	// Reason and Message are the Event's.
	Reason  string `json:"reason"`
	Message string `json:"message"`

	node, name string
}

// maxHistory bounds the changes that are remembered, the newest of all nodes.
const maxHistory = 4096

// History remembers the Events that topo-master wrote about Nodes. The API server
// keeps them for an hour; this replica for as long as it runs.
type History struct {
	controller cache.Controller

	mu      sync.Mutex
	changes []Change // The oldest first.
}

// NewHistory returns a history of a component's Events; Run starts it.
func NewHistory(core rest.Interface, component string) *History {
	h := &History{}
	own := fields.OneTermEqualSelector("source", component)
	_, h.controller = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(core, "events", metav1.NamespaceDefault, own),
		ObjectType:    &corev1.Event{},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
			if c, ok := obj.(*Change); ok && c.node != "" {
				h.add(c)
			}
		}},
		Transform: func(obj any) (any, error) {
			if e, ok := obj.(*corev1.Event); ok {
				return changeOf(e), nil
			}
			return obj, nil // The queue passes on what the list has transformed.
		},
	})
	return h
}

func changeOf(e *corev1.Event) *Change {
	c := &Change{Time: e.LastTimestamp.UTC(), Reason: e.Reason, Message: e.Message, name: e.Name}
	if e.InvolvedObject.Kind == "Node" {
		c.node = e.InvolvedObject.Name
	}
	return c
}

// GetObjectMeta is for client-go's keys.
func (c *Change) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: c.name}
}

// Run watches until ctx ends and returns nil. Nothing waits for it: without permission to read
// Events the history stays empty.
func (h *History) Run(ctx context.Context) error {
	h.controller.RunWithContext(ctx)
	return nil
}

// add appends a change: those of one node come in the order of their times. A watch that starts
// again may bring one twice.
func (h *History) add(c *Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.ContainsFunc(h.changes, func(k Change) bool { return k.name == c.name }) {
		h.changes = append(h.changes, *c)
		h.changes = h.changes[max(len(h.changes)-maxHistory, 0):]
	}
}

// Of returns a node's changes, the newest first. A nil History returns none.
func (h *History) Of(node string) []Change {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []Change
	for _, c := range slices.Backward(h.changes) {
		if c.node == node {
			out = append(out, c)
		}
	}
	return out
}
