package agent

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

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

const (
	// selectTimeout bounds how long a preference of whole GPUs waits for its pod: the kubelet and
	// the agent receive it at about the same time. shareTimeout is the bound for shares, where
	// nothing depends on the pod.
	selectTimeout = 50 * time.Millisecond
	shareTimeout  = 10 * time.Millisecond
	// expectedFor is the time for which an expected container is not expected again: by then its
	// pod shows that the kubelet has admitted it.
	expectedFor = 5 * time.Second
)

// requests find the pods that the kubelet may be asking for, so that they get the GPUs
// that they name or that the scheduler chose, and make an Event on a pod that got others
// than it names. Without an API server no pod is found.
type requests struct {
	*Options
	state *devicestate.State
	last  *atomic.Pointer[publish.Round]

	mu       sync.Mutex
	expected map[expectation]time.Time // guarded by mu
}

// expectation is a container for which replicas were chosen a moment ago.
type expectation struct {
	pod       types.UID
	container string
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

// expectedShares is a resource of shares for pods that may be known.
type expectedShares struct {
	*resource.Shares
	requests *requests
}

// Prefer implements [server.Resource].
func (e expectedShares) Prefer(available, must []string, size int) ([]string, error) {
	return resource.PreferShares(available, must, e.requests.shareGPUs(size), size)
}

// awaits reports whether the kubelet may be asking for a pod: it sets a start time when
// it admits one, which is when it asks.
func awaits(p *corev1.Pod, name string, size int) bool {
	if p.Status.StartTime != nil || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodPending {
		return false
	}
	return slices.ContainsFunc(containersOf(p), func(c corev1.Container) bool { return asksFor(&c, name, size) })
}

// containersOf returns the containers of a pod in the order in which the kubelet admits them.
func containersOf(p *corev1.Pod) []corev1.Container {
	return slices.Concat(p.Spec.InitContainers, p.Spec.Containers)
}

// asksFor reports whether a container asks for that number of devices.
func asksFor(c *corev1.Container, name string, size int) bool {
	n, ok := c.Resources.Limits[corev1.ResourceName(name)]
	return ok && n.Value() == int64(size)
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

// shareGPUs returns the GPUs, best first, that a container will get that may be meant by a
// request for that number of replicas; none if that is not known. The kubelet admits pods
// in the order of their creation, and their containers in that of the pod; so it asks for
// the first one that it has not admitted yet. A wrong one costs nothing but a device ID
// that names another GPU than its container gets.
func (r *requests) shareGPUs(size int) []string {
	name := r.now().Config.Resources.SGPU
	waiting := r.API.Await(shareTimeout, func(p *corev1.Pod) bool { return awaits(p, name, size) })
	slices.SortFunc(waiting, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	var pod *corev1.Pod
	var container *corev1.Container
	for _, p := range waiting {
		for _, c := range containersOf(p) {
			switch {
			case !asksFor(&c, name, size):
				continue
			case r.claim(expectation{p.UID, c.Name}):
				return r.gpusFor(p, &c)
			case pod == nil:
				pod, container = p, &c
			}
		}
	}
	if pod == nil {
		return nil
	}
	return r.gpusFor(pod, container)
}

// claim notes a container, and reports whether it was not expected a moment ago.
func (r *requests) claim(one expectation) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(r.expected, func(_ expectation, at time.Time) bool { return now.Sub(at) > expectedFor })
	if _, expected := r.expected[one]; expected {
		return false
	}
	r.expected[one] = now
	return true
}

// gpusFor returns the GPUs that a container will get, as far as it is known.
func (r *requests) gpusFor(p *corev1.Pod, container *corev1.Container) []string {
	inv := r.now()
	request, err := quota.ParseRequest(container.Resources.Limits, allocate.Annotations(p, inv), inv.Config)
	if err != nil {
		return nil
	}
	chosen, _, err := allocate.Scheduled(p, container.Name, &request, r.NodeName, inv)
	if err != nil || len(chosen) > 0 {
		return chosen
	}
	gpus := r.state.View().GPUs()
	places, _ := quota.Place(gpus, &request, inv.Config.SGPU.Placement, nil)
	uuids := make([]string, len(places))
	for i, place := range places {
		uuids[i] = gpus[place].UUID
	}
	return uuids
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
