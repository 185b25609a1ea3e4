package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/deviceplugin/resource/gpu"
)

const (
	// expectTimeout is how long a preference waits for a pod to be known: the
	// kubelet and the agent receive it at about the same time.
	expectTimeout = 50 * time.Millisecond
	checkTimeout  = 10 * time.Second
	// maxStarted are the starts that wait to be checked; later ones are not.
	maxStarted = 128
)

// started is a container that was bound.
type started struct {
	resource string
	ids      []string
}

// selectors honor which GPUs pods ask for by annotation: they find the pods that
// the kubelet may be asking for, and make an Event on a pod that got others.
type selectors struct {
	*core
	started chan started
}

func newSelectors(c *core) *selectors {
	return &selectors{core: c, started: make(chan started, maxStarted)}
}

// selectedGPUs is a resource whose devices the pods may select.
type selectedGPUs struct {
	*gpu.Resource
	selectors *selectors
}

// Prefer implements [server.Resource].
func (g selectedGPUs) Prefer(available, must []string, size int) ([]string, error) {
	return g.PreferFor(g.selectors.expected(g.Name, size), available, must, size)
}

// PreStart implements [server.Allocator]. What the pod asked for is checked
// afterwards, off the path of its start.
func (g selectedGPUs) PreStart(ctx context.Context, ids []string) error {
	if err := g.Resource.PreStart(ctx, ids); err != nil {
		return err
	}
	select {
	case g.selectors.started <- started{g.Name, ids}:
	default:
		g.Log.WarnContext(ctx, "start not checked: too many are waiting", "resource", g.Name)
	}
	return nil
}

// expected is what all pods want that are bound to this node, ask for so many
// devices, and that the kubelet has not admitted yet; none if they do not agree.
// If there is none, though the kubelet asks, it waits a moment for one.
func (s *selectors) expected(resource string, size int) gpu.Selector {
	pods := s.API.Await(expectTimeout, func(p *corev1.Pod) bool { return awaits(p, resource, size) })
	return common(pods, s.domainsOf(resource))
}

// domainsOf has the maker whose resource it is, which prefixes the annotations of its pods.
func (s *selectors) domainsOf(resource string) wellknown.Domains {
	d := s.config().Domains
	maker, _, _ := strings.Cut(resource, "/")
	if slices.ContainsFunc(wellknown.Vendors(), func(v wellknown.Vendor) bool { return v.Domain == maker }) {
		d.Vendor = maker
	}
	return d
}

// awaits reports whether the kubelet may be asking for a pod: it sets a start
// time when it admits one, which is when it asks.
func awaits(p *corev1.Pod, resource string, size int) bool {
	if p.Status.StartTime != nil || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodPending {
		return false
	}
	return slices.ContainsFunc(containersOf(p), func(c corev1.Container) bool { return asksFor(&c, resource, size) })
}

// common is what pods want if they want the same. Annotations that contradict
// each other want nothing; the pod gets an Event when it starts.
func common(pods []*corev1.Pod, domains wellknown.Domains) gpu.Selector {
	var all gpu.Selector
	for i, p := range pods {
		one, err := gpu.SelectorOf(p.Annotations, domains)
		if err != nil {
			one = gpu.Selector{}
		}
		if i > 0 && (!slices.Equal(one.Use, all.Use) || !slices.Equal(one.Avoid, all.Avoid)) {
			return gpu.Selector{}
		}
		all = one
	}
	return all
}

// run checks starts until ctx ends.
func (s *selectors) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case one := <-s.started:
			s.check(ctx, one)
		}
	}
}

// check makes an Event on the pod that a start was of if it has GPUs that it does
// not accept, or asks for some that the node does not have.
func (s *selectors) check(ctx context.Context, one started) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for _, b := range s.state.View().Allocations() {
		if !holds(&b, one) {
			continue
		}
		pod, err := s.API.Pod(ctx, kubelet.Pod{Namespace: b.Namespace, Name: b.Pod, UID: b.UID})
		if err != nil {
			s.Log.DebugContext(ctx, "start not checked", "pod", b.Pod, "err", err)
			continue
		}
		selector, err := gpu.SelectorOf(pod.Annotations, s.domainsOf(one.resource))
		if err == nil && !selector.None() {
			err = selector.Check(s.machine(), one.ids)
		}
		if err != nil {
			about := kubelet.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
			s.API.WarnPod(about, wellknown.EventSelectorNotHonored, err.Error())
		}
	}
}

func holds(b *report.Binding, one started) bool {
	_, has := b.CDINames[one.resource]
	return has && !slices.ContainsFunc(one.ids, func(id string) bool { return !slices.Contains(b.GPUs, id) })
}
