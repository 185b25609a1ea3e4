package apiserver

import (
	"context"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

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
