package agent

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// selectTimeout bounds how long a preference of GPUs waits for its pod: the kubelet and
// the agent receive it at about the same time.
const selectTimeout = 50 * time.Millisecond

// requests find the pods that the kubelet may be asking for, so that they get the GPUs
// that they name, and make an Event on a pod that got others. Without an API server no pod is found.
type requests struct {
	*Options
	state *devicestate.State
	last  *atomic.Pointer[publish.Round]
}

func (r *requests) now() *inventory.Inventory { return r.last.Load().Inventory }

// selectedGPUs is a resource with devices that pods may select.
type selectedGPUs struct {
	*resource.GPUs
	requests *requests
}

// Prefer implements [server.Resource].
func (g selectedGPUs) Prefer(available, must []string, size int) ([]string, error) {
	return g.PreferFor(g.requests.selector(g.Name, size), available, must, size)
}

// PreStart implements [server.Allocator]. What the pod asked for never fails its start.
func (g selectedGPUs) PreStart(ctx context.Context, ids []string) error {
	err := g.GPUs.PreStart(ctx, ids)
	if err == nil {
		g.requests.check(g.Name, ids)
	}
	return err
}

// awaits reports whether the kubelet may be asking for a pod: it sets a start time when
// it admits one, which is when it asks.
func awaits(p *corev1.Pod, name string, size int) bool {
	if p.Status.StartTime != nil || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodPending {
		return false
	}
	return slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers), func(c corev1.Container) bool {
		n, ok := c.Resources.Limits[corev1.ResourceName(name)]
		return ok && n.Value() == int64(size)
	})
}

// selector returns the common selector of the pods that are bound to this node, ask for that number of
// devices, and that the kubelet has not admitted yet; none if they do not agree.
func (r *requests) selector(name string, size int) quota.Selector {
	pods := r.API.Await(selectTimeout, func(p *corev1.Pod) bool { return awaits(p, name, size) })
	return common(pods, r.domainsOf(name))
}

// domainsOf has the vendor of a resource, which prefixes the annotations of its pods.
func (r *requests) domainsOf(name string) wellknown.Domains {
	d := r.now().Config.Domains
	vendor, _, _ := strings.Cut(name, "/")
	if slices.ContainsFunc(wellknown.Vendors(), func(v wellknown.Vendor) bool { return v.Domain == vendor }) {
		d.Vendor = vendor
	}
	return d
}

// common returns the selector of pods that all select the same. Annotations that contradict each
// other select nothing; the pod gets an Event when it starts.
func common(pods []*corev1.Pod, domains wellknown.Domains) quota.Selector {
	var all quota.Selector
	for i, p := range pods {
		one, err := quota.SelectorOf(p.Annotations, domains)
		if err != nil {
			one = quota.Selector{}
		}
		if i > 0 && (!slices.Equal(one.Use, all.Use) || !slices.Equal(one.Avoid, all.Avoid)) {
			return quota.Selector{}
		}
		all = one
	}
	return all
}

// check makes an Event on the pod that starts if it has GPUs that it does not accept, or
// asks for some that the node does not have. A pod that is not watched yet is not checked.
func (r *requests) check(name string, ids []string) {
	for _, b := range r.state.View().Allocations() {
		_, has := b.CDINames[name]
		if !has || slices.ContainsFunc(ids, func(id string) bool { return !slices.Contains(b.GPUs, id) }) {
			continue
		}
		pod, _ := r.API.Watched(kubelet.Pod{Namespace: b.Namespace, Name: b.Pod, UID: b.UID})
		if pod == nil {
			continue
		}
		selector, err := quota.SelectorOf(pod.Annotations, r.domainsOf(name))
		if err == nil && !selector.None() {
			err = resource.CheckSelector(selector, r.now().Machine, ids)
		}
		if err != nil {
			r.API.WarnPod(apiserver.Ref(pod), wellknown.EventSelectorNotHonored, err.Error())
		}
	}
}
