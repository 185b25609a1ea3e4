package apiserver

import (
	"context"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

const (
	// maxEventMessage is the API's limit, in bytes.
	maxEventMessage = 1024
	// eventBurst Events on one object are sent at once, and as many different ones in ten minutes: a
	// node has many devices. Equal Events become one with a count.
	eventBurst = 100
)

// newRecorder returns a recorder: none of those who report an Event waits for the API server.
func newRecorder(core typed.EventsGetter, node string) (record.EventRecorder, record.EventBroadcaster) {
	b := record.NewBroadcasterWithCorrelatorOptions(record.CorrelatorOptions{
		BurstSize: eventBurst, MaxEvents: eventBurst,
	})
	b.StartRecordingToSink(&typed.EventSinkImpl{Interface: core.Events("")})
	return b.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: component, Host: node}), b
}

// WarnPod records an Event on a pod. It returns at once.
func (c *Client) WarnPod(pod kubelet.Pod, reason, message string) {
	if c == nil {
		return
	}
	message = wellknown.ClipTo(message, maxEventMessage) // It may repeat what the pod's owner wrote.
	c.log.Warn("event on a pod", "pod", pod.String(), "reason", reason, "message", message)
	if pod.Name != "" {
		c.events.Event(&corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID),
		}, corev1.EventTypeWarning, reason, message)
	}
}

// Record records an Event on the Node. It returns at once.
func (c *Client) Record(n health.NodeEvent) {
	if c == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if n.Warning {
		kind = corev1.EventTypeWarning
	}
	// kubectl finds a Node's Events by its name used as UID, as the kubelet does.
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: c.node, UID: types.UID(c.node)}
	c.events.Event(about, kind, n.Reason, wellknown.ClipTo(n.Message, maxEventMessage))
}

// An Evictor evicts five pods at once, and then one every six seconds: a mistake must
// not become a storm of new pods.
const (
	evictEvery = 6 * time.Second
	evictBurst = 5
)

// Evictor evicts pods at a bounded rate. It decides nothing.
type Evictor struct {
	client *Client
	limit  *rate.Limiter
}

// NewEvictor makes an Evictor for one reason of evictions.
func NewEvictor(c *Client) *Evictor {
	return &Evictor{client: c, limit: rate.NewLimiter(rate.Every(evictEvery), evictBurst)}
}

// Evict evicts a pod with an Event, and reports whether it did. A caller that still
// wants the pod evicted calls again.
func (e *Evictor) Evict(ctx context.Context, pod kubelet.Pod, event, message string) bool {
	if !e.limit.Allow() {
		return false
	}
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	err := e.client.Evict(ctx, key, types.UID(pod.UID))
	switch {
	case err == nil:
		e.client.log.InfoContext(ctx, "evicted", "pod", pod.String(), "event", event, "reason", message)
		e.client.WarnPod(pod, event, message)
		return true
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // It is gone.
	case apierrors.IsTooManyRequests(err):
		e.client.log.DebugContext(ctx, "eviction waits for a disruption budget", "pod", pod.String(), "err", err)
	default:
		e.client.log.WarnContext(ctx, "eviction failed", "pod", pod.String(), "event", event, "err", err)
	}
	return false
}

// Ref names a pod.
func Ref(p *corev1.Pod) kubelet.Pod {
	return kubelet.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}
}
