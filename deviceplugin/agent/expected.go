package agent

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/resource/sgpu"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// preferTimeout is how long a preference waits for a pod to be known: less than
// for whole GPUs, since nothing depends on it.
const preferTimeout = 10 * time.Millisecond

// expectedFor is how long a container that was expected is not expected again:
// until then its pod shows that the kubelet has admitted it.
const expectedFor = 5 * time.Second

// expectations are the containers for which replicas were chosen a moment ago.
type expectations struct {
	mu  sync.Mutex
	all map[expectation]time.Time // guarded by mu
}

type expectation struct {
	pod       types.UID
	container string
}

// claim notes a container, and reports whether it was not expected a moment ago.
func (g *expectations) claim(one expectation) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(g.all, func(_ expectation, at time.Time) bool { return now.Sub(at) > expectedFor })
	if _, expected := g.all[one]; expected {
		return false
	}
	if g.all == nil {
		g.all = map[expectation]time.Time{}
	}
	g.all[one] = now
	return true
}

// expectedShares is a resource of shares of which the pod that the kubelet may be
// asking for is known.
type expectedShares struct {
	*sgpu.Resource
	shares *shares
}

// Prefer implements [server.Resource].
func (e expectedShares) Prefer(available, must []string, size int) ([]string, error) {
	return sgpu.Prefer(available, must, e.shares.expected(size), size)
}

// expected are the GPUs, best first, that a container will get that may be meant
// by a request for so many replicas; none if that is not known. The kubelet
// admits pods in the order of their creation, and their containers in that of the
// pod; so it asks for the first one that it has not admitted yet. A wrong one
// costs nothing but a device ID that names another GPU than its container gets.
func (t *shares) expected(size int) []string {
	resource := t.config().Resources.SGPU
	waiting := t.API.Await(preferTimeout, func(p *corev1.Pod) bool { return awaits(p, resource, size) })
	slices.SortFunc(waiting, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	var pod *corev1.Pod
	var container *corev1.Container
	for _, p := range waiting {
		for _, c := range containersOf(p) {
			switch {
			case !asksFor(&c, resource, size):
				continue
			case t.expectations.claim(expectation{p.UID, c.Name}):
				return t.gpusFor(p, &c)
			case pod == nil:
				pod, container = p, &c
			}
		}
	}
	if pod == nil {
		return nil
	}
	return t.gpusFor(pod, container)
}

// containersOf are the containers of a pod in the order in which the kubelet
// admits them.
func containersOf(p *corev1.Pod) []corev1.Container {
	return slices.Concat(p.Spec.InitContainers, p.Spec.Containers)
}

// asksFor reports whether a container asks for so many devices.
func asksFor(c *corev1.Container, resource string, size int) bool {
	n, ok := c.Resources.Limits[corev1.ResourceName(resource)]
	return ok && n.Value() == int64(size)
}

// gpusFor are the GPUs that a container will get, as far as it is known.
func (t *shares) gpusFor(p *corev1.Pod, container *corev1.Container) []string {
	c := t.config()
	request, err := quota.ParseRequest(container.Resources.Limits, allocate.Annotations(p, t.now.Load()), c)
	if err != nil {
		return nil
	}
	chosen, _, err := allocate.Scheduled(p, container.Name, &request, t.NodeName, t.now.Load())
	if err != nil || len(chosen) > 0 {
		return chosen
	}
	gpus := t.state.View().GPUs()
	places, _ := quota.Place(gpus, &request, c.SGPU.Placement, nil)
	uuids := make([]string, len(places))
	for i, place := range places {
		uuids[i] = gpus[place].UUID
	}
	return uuids
}
