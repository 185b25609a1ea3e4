package apiserver

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

const (
	// maxEvents wait for the API server; Events beyond are in the log only.
	maxEvents = 128
	// maxEventMessage is the API's limit, in bytes.
	maxEventMessage = 1024
	// eventTimeout bounds one Event.
	eventTimeout = 10 * time.Second
	// eventAgain is the least time between equal Events on a pod: the kubelet starts a failing
	// container again and again.
	eventAgain = 10 * time.Minute
	// maxRecent bounds the Events that are remembered for that.
	maxRecent = 1024
)

// events is a queue of Events: none of those who report one waits for the API
// server.
type events struct {
	queue chan *corev1.Event

	mu     sync.Mutex
	recent map[reported]time.Time // guarded by mu
}

// reported is an Event that was queued.
type reported struct {
	about           corev1.ObjectReference
	reason, message string
}

func newEvents() *events {
	return &events{queue: make(chan *corev1.Event, maxEvents), recent: map[reported]time.Time{}}
}

// WarnPod queues an Event on a pod, unless the same was queued a moment ago. It
// returns at once.
func (c *Client) WarnPod(pod kubelet.Pod, reason, message string) {
	if c == nil {
		return
	}
	about := corev1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID),
	}
	message = wellknown.ClipTo(message, maxEventMessage) // It is remembered, and may repeat what the pod's owner wrote.
	if c.events.repeated(reported{about, reason, message}) {
		return
	}
	c.log.Warn("event on a pod", "pod", pod.String(), "reason", reason, "message", message)
	if pod.Name != "" {
		c.queueEvent(about, corev1.EventTypeWarning, reason, message)
	}
}

// Record queues an Event on the Node. It returns at once.
func (c *Client) Record(n health.NodeEvent) {
	if c == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if n.Warning {
		kind = corev1.EventTypeWarning
	}
	// kubectl finds a Node's Events by its name used as UID, as the kubelet does.
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: c.node, UID: types.UID(c.node)}
	c.queueEvent(about, kind, n.Reason, n.Message)
}

func (e *events) repeated(one reported) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if last, ok := e.recent[one]; ok && now.Sub(last) < eventAgain {
		return true
	}
	if len(e.recent) >= maxRecent {
		clear(e.recent)
	}
	e.recent[one] = now
	return false
}

func (c *Client) queueEvent(about corev1.ObjectReference, kind, reason, message string) {
	if len(message) > maxEventMessage {
		message = strings.ToValidUTF8(message[:maxEventMessage], "")
	}
	now := metav1.NewTime(time.Now())
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: about.Name + ".", Namespace: cmp.Or(about.Namespace, metav1.NamespaceDefault),
		},
		InvolvedObject: about, Type: kind, Reason: reason, Message: message,
		Source:         corev1.EventSource{Component: component, Host: c.node},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	select {
	case c.events.queue <- event:
	default:
		c.log.Warn("event dropped: too many are waiting", "reason", reason, "message", message)
	}
}

// sendEvents sends until ctx ends.
func (c *Client) sendEvents(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-c.events.queue:
			c.sendEvent(ctx, event)
		}
	}
}

func (c *Client) sendEvent(ctx context.Context, event *corev1.Event) {
	within, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	err := c.rest.Post().Namespace(event.Namespace).Resource("events").Body(event).Do(within).Error()
	if err != nil && ctx.Err() == nil {
		c.log.WarnContext(ctx, "event not recorded", "reason", event.Reason, "message", event.Message, "err", err)
	}
}
