package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// ReasonEvicted is the Event on a pod that was refused for too long and is
// evicted.
const ReasonEvicted = "SGPUEvicted"

// A node evicts five pods at once, and then one every six seconds: a mistake
// that refuses all pods must not become a storm of new ones.
const (
	evictEvery = 6 * time.Second
	evictBurst = 5
)

// evictRefused evicts pods that have waited for a card for too long, so that
// they are scheduled again.
func (t *tenancy) evictRefused(ctx context.Context, pods []*corev1.Pod, now time.Time) {
	patience := t.agent.config().SGPU.RejectedFor.Value()
	if patience <= 0 {
		return
	}
	for _, r := range t.agent.state.Rejections() {
		at := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return string(p.UID) == r.Pod.UID })
		if r.Kind == allocate.RejectedRequest || now.Sub(r.Since) < patience || at < 0 {
			continue // The next pod would ask for the same.
		}
		if why := evictable(pods[at], t.agent.config().Resources.SGPU); why != "" {
			t.agent.Log.DebugContext(ctx, "a refused pod stays", "pod", r.Pod.String(), "reason", why)
			continue
		}
		if !t.evictions.AllowN(now, 1) {
			return
		}
		key := types.NamespacedName{Namespace: r.Pod.Namespace, Name: r.Pod.Name}
		err := t.agent.API.Evict(ctx, key, types.UID(r.Pod.UID))
		switch {
		case err == nil:
			t.evicted.Inc()
			t.agent.Log.InfoContext(ctx, "evicted", "pod", r.Pod.String(), "reason", r.Reason)
			t.agent.API.WarnPod(kubelet.Pod(r.Pod), ReasonEvicted, fmt.Sprintf("refused for %s: %s", patience, r.Reason))
		case apierrors.IsNotFound(err), apierrors.IsConflict(err): // It is gone.
		default:
			t.agent.Log.WarnContext(ctx, "a refused pod is not evicted yet", "err", err)
		}
	}
}

// evictable says why a pod is not evicted: nobody would make it anew, or not
// elsewhere, or a container with shares has done something. Others may run: an
// injected sidecar does not wait for the one that is refused.
func evictable(p *corev1.Pod, resource string) string {
	owner := metav1.GetControllerOf(p)
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case p.DeletionTimestamp != nil:
		return "it is on its way out"
	case p.Status.Phase != corev1.PodPending:
		return "it has started"
	case owner == nil:
		return "no controller would make it anew"
	case mirror || owner.Kind == "Node":
		return "it is a static pod"
	case owner.Kind == "DaemonSet":
		return "its DaemonSet would make it anew here"
	}
	for _, s := range slices.Concat(p.Status.ContainerStatuses, p.Status.InitContainerStatuses) {
		ran := s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil
		if (ran || s.RestartCount > 0) && asks(p, s.Name, resource) {
			return "container " + s.Name + " has started"
		}
	}
	return ""
}

func asks(p *corev1.Pod, container, resource string) bool {
	return slices.ContainsFunc(slices.Concat(p.Spec.Containers, p.Spec.InitContainers), func(c corev1.Container) bool {
		_, ok := c.Resources.Limits[corev1.ResourceName(resource)]
		return ok && c.Name == container
	})
}
