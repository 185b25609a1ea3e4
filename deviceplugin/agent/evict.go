package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
)

// A node evicts five pods at once, and then one every six seconds: a mistake
// that rejects all pods must not become a storm of new ones.
const (
	evictEvery = 6 * time.Second
	evictBurst = 5
)

// A pod is rejected for longestWait times the configured time at most. Evictions that are
// forgetAfter times that time ago do not count.
const (
	longestWait = 8
	forgetAfter = 2 * longestWait
)

// evictedPod is the last pod of a controller that was evicted here: when, and for how long
// it had been rejected.
type evictedPod struct {
	at   time.Time
	wait time.Duration
}

// next is for how long a pod of that controller is rejected until it is evicted. A scheduler that
// cannot know why the node rejects may choose it again and again, so the time doubles with
// each pod that was rejected after the last eviction.
func (e evictedPod) next(since time.Time, patience time.Duration) time.Duration {
	switch {
	case since.Sub(e.at) > forgetAfter*patience:
		return patience
	case since.After(e.at):
		return min(2*e.wait, longestWait*patience)
	default:
		return e.wait
	}
}

// evictRejected evicts pods that have waited for a GPU or for HCAs for too long, so
// that they are scheduled again.
func (t *shares) evictRejected(ctx context.Context, pods []*corev1.Pod, now time.Time) {
	c := t.config()
	for _, r := range t.state.Rejections() {
		patience, event, resources := c.SGPU.RejectedFor, wellknown.EventSGPUEvicted, []string{c.Resources.SGPU}
		if r.Kind == allocate.RejectedHCAs {
			patience, event, resources = c.RDMA.RejectedFor, wellknown.EventHCAEvicted, nil
			for i := range c.RDMA.Resources {
				resources = append(resources, c.RDMA.Resources[i].Name)
			}
		}
		at := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return string(p.UID) == r.Pod.UID })
		if patience <= 0 || r.Kind == allocate.RejectedRequest || r.Kind == allocate.RejectedChannels || at < 0 {
			continue // The next pod would ask for the same.
		}
		last := t.lastEvicted[ownerOf(pods[at])]
		wait := last.next(r.Since, patience)
		if now.Sub(r.Since) < wait {
			continue
		}
		if reason := notEvictable(pods[at], resources...); reason != "" {
			t.Log.DebugContext(ctx, "rejected pod not evicted", "pod", r.Pod.String(), "reason", reason)
			continue
		}
		if !t.evictions.AllowN(now, 1) {
			return
		}
		key := types.NamespacedName{Namespace: r.Pod.Namespace, Name: r.Pod.Name}
		err := t.API.Evict(ctx, key, types.UID(r.Pod.UID))
		switch {
		case err == nil:
			t.evicted.Inc()
			maps.DeleteFunc(t.lastEvicted, func(_ types.UID, e evictedPod) bool { return now.Sub(e.at) > forgetAfter*e.wait })
			t.lastEvicted[ownerOf(pods[at])] = evictedPod{now, wait}
			t.Log.InfoContext(ctx, "evicted", "pod", r.Pod.String(), "reason", r.Reason)
			t.API.WarnPod(r.Pod, event, fmt.Sprintf("rejected for %s: %s", wait, r.Reason))
		case apierrors.IsNotFound(err), apierrors.IsConflict(err): // It is gone.
		default:
			t.Log.WarnContext(ctx, "evicting a rejected pod failed", "err", err)
		}
	}
}

// ownerOf is the pod's controller; empty without one.
func ownerOf(p *corev1.Pod) types.UID {
	if owner := metav1.GetControllerOf(p); owner != nil {
		return owner.UID
	}
	return ""
}

// notEvictable is why a pod is not evicted: no controller would make another one,
// or not elsewhere, or a container with one of the resources has run. Others may run: an
// injected sidecar does not wait for the one that is rejected.
func notEvictable(p *corev1.Pod, resources ...string) string {
	if reason := notReplaced(p); reason != "" {
		return reason
	}
	if p.Status.Phase != corev1.PodPending {
		return "it has started"
	}
	for _, s := range slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses) {
		ran := s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
		if (ran || s.RestartCount > 0) && asks(p, s.Name, resources) {
			return "container " + s.Name + " has started"
		}
	}
	return ""
}

// notReplaced is why no other pod would come elsewhere for one that is evicted.
func notReplaced(p *corev1.Pod) string {
	owner := metav1.GetControllerOf(p)
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case p.DeletionTimestamp != nil:
		return "it is on its way out"
	case owner == nil:
		return "no controller would make another one"
	case mirror || owner.Kind == "Node":
		return "it is a static pod"
	case owner.Kind == "DaemonSet":
		return "its DaemonSet would make another one here"
	}
	return ""
}

func asks(p *corev1.Pod, container string, resources []string) bool {
	return slices.ContainsFunc(containersOf(p), func(c corev1.Container) bool {
		return c.Name == container && slices.ContainsFunc(resources, func(name string) bool {
			_, ok := c.Resources.Limits[corev1.ResourceName(name)]
			return ok
		})
	})
}
