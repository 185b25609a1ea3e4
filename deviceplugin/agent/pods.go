package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// selectTimeout bounds how long a preference of whole GPUs waits for its pod: the kubelet and
// the agent receive it at about the same time. shareTimeout is the bound for shares, where
// nothing depends on the pod.
const (
	selectTimeout = 50 * time.Millisecond
	shareTimeout  = 10 * time.Millisecond
)

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

// scheduledShares is a resource of shares with device IDs that name the GPUs which a scheduler chose, if that is
// known: a GPU can change its mode once no pod has an ID of it.
type scheduledShares struct {
	*resource.Shares
	requests *requests
}

// Prefer implements [server.Resource].
func (s scheduledShares) Prefer(available, must []string, size int) ([]string, error) {
	chosen := s.requests.scheduled(size)
	of := slices.DeleteFunc(slices.Clone(available), func(id string) bool {
		return !slices.Contains(chosen, inventory.DeviceOf(id)) && !slices.Contains(must, id)
	})
	if ids, err := s.Shares.Prefer(of, must, size); err == nil {
		return ids, nil
	}
	return s.Shares.Prefer(available, must, size)
}

// scheduled returns the GPUs that a scheduler chose for the oldest pod which a request for that number of shares may
// mean; none if that is not known.
func (r *requests) scheduled(size int) []string {
	inv := r.now()
	name := inv.Config.Resources.SGPU
	pods := r.API.Await(shareTimeout, func(p *corev1.Pod) bool { return awaits(p, name, size) })
	if len(pods) == 0 {
		return nil
	}
	p := slices.MinFunc(pods, func(a, b *corev1.Pod) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, c := range p.Spec.Containers {
		request, err := quota.ParseRequest(c.Resources.Limits, allocate.Annotations(p, inv), inv.Config)
		if err != nil {
			continue
		}
		if uuids, _, err := allocate.Scheduled(p, c.Name, &request, r.NodeName, inv); err == nil && len(uuids) == size {
			return uuids
		}
	}
	return nil
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

// annotatePods writes [wellknown.SGPUBound] where it differs from what the containers have. Many pods may start at
// once: again reports that something was not written, for an error or for lack of time.
func annotatePods(
	ctx context.Context, o *Options, bound map[types.NamespacedName]*boundPod, pods []*corev1.Pod, incomplete bool,
) (again bool) {
	for _, p := range pods {
		key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		b := bound[key]
		if b != nil && b.uid != "" && !apiserver.HasUID(p, b.uid) {
			b = nil
		}
		if b == nil && incomplete || b != nil && b.unrecorded {
			continue // The annotation stays as it was written.
		}
		text, warning := b.shown(p)
		now := p.Annotations[wellknown.SGPUBound]
		ended := p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if now == text || ended {
			continue
		}
		value := &text
		if text == "" {
			value = nil
		}
		if err := o.API.AnnotatePod(ctx, key, p.UID, map[string]*string{wellknown.SGPUBound: value}); err != nil {
			again = true
			o.Log.WarnContext(ctx, "annotating a pod with its GPUs failed", "pod", key.String(), "err", err)
			continue
		}
		if warning != "" {
			o.API.WarnPod(apiserver.Ref(p), wellknown.EventSharesNotEnforced, warning)
		}
	}
	return again
}

// shown returns the annotation of a pod, and the warning that goes with it: shares are not enforced, which no
// annotation of the pod has reported before.
func (b *boundPod) shown(p *corev1.Pod) (text, warning string) {
	if b == nil {
		return "", ""
	}
	before, _ := allocation.ParseBound(p.Annotations[wellknown.SGPUBound])
	for _, name := range slices.Sorted(maps.Keys(b.Containers)) {
		if before != nil && len(before.Containers[name].NotEnforced) > 0 {
			return b.String(), ""
		}
		if what := b.Containers[name].NotEnforced; len(what) > 0 && warning == "" {
			warning = fmt.Sprintf("nothing keeps container %s within its share of %s, which is only counted: "+
				"the node has no enforcer for it (sgpu.enforce)", name, strings.Join(what, " and "))
		}
	}
	return b.String(), warning
}

// boundPod is the annotation of a pod, and its UID as the kubelet knows it. unrecorded: a
// container of it is unrecorded, or the pod is leaving.
type boundPod struct {
	allocation.Bound
	uid        string
	unrecorded bool
}

// boundPods returns the annotations of all pods with shares.
func boundPods(view *devicestate.View, node string) map[types.NamespacedName]*boundPod {
	all := make(map[types.NamespacedName]*boundPod)
	for _, b := range view.Allocations() {
		if len(b.Shares) == 0 && !b.Unrecorded {
			continue
		}
		key := types.NamespacedName{Namespace: b.Namespace, Name: b.Pod}
		if all[key] == nil {
			all[key] = &boundPod{uid: b.UID, Bound: allocation.Bound{
				Version: allocation.Version, Node: node, Containers: map[string]allocation.Sharing{},
			}}
		}
		all[key].unrecorded = all[key].unrecorded || b.Unrecorded
		all[key].Containers[b.Container] = b.Sharing
	}
	for p := range view.Expiring() {
		if key := (types.NamespacedName{Namespace: p.Namespace, Name: p.Name}); all[key] == nil {
			all[key] = &boundPod{uid: p.UID, unrecorded: true}
		}
	}
	return all
}
