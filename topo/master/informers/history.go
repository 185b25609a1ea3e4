package informers

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// Change is an Event about a cable of a node: found wrong, or as expected again.
type Change struct {
	Time time.Time `json:"time"`
	// Reason and Message are the Event's.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// fresh is the age up to which listed Events answer further questions.
const fresh = 5 * time.Second

// History lists the Events that a component wrote about Nodes. The API server keeps them for an hour.
type History struct {
	core      rest.Interface
	component string
	clock     clock.PassiveClock

	mu     sync.Mutex // Concurrent questions share a list.
	events corev1.EventList
	listed time.Time
}

// NewHistory returns the history of a component's Events.
func NewHistory(core rest.Interface, component string, c clock.PassiveClock) *History {
	return &History{core: core, component: component, clock: c}
}

// Of returns a node's changes, the newest first. A nil History, or one that may not read Events, returns none.
func (h *History) Of(ctx context.Context, node string) (out []Change) {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := h.clock.Now(); now.Sub(h.listed) > fresh {
		list := h.core.Get().Namespace(metav1.NamespaceDefault).Resource("events").
			Param("fieldSelector", "source="+h.component).Param("resourceVersion", "0").Do(ctx)
		var events corev1.EventList
		if list.Into(&events) == nil {
			h.events = events
		}
		h.listed = now
	}
	for i := range h.events.Items {
		if e := &h.events.Items[i]; e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == node {
			out = append(out, Change{e.LastTimestamp.UTC(), e.Reason, e.Message})
		}
	}
	slices.SortStableFunc(out, func(a, b Change) int { return b.Time.Compare(a.Time) })
	return out
}
