package agent

import (
	"cmp"
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

// first notes and returns the first that was not expected a moment ago.
func (g *expectations) first(candidates []expectation) expectation {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for one, at := range g.all {
		if now.Sub(at) > expectedFor {
			delete(g.all, one)
		}
	}
	if g.all == nil {
		g.all = map[expectation]time.Time{}
	}
	for _, one := range candidates {
		if _, done := g.all[one]; !done {
			g.all[one] = now
			return one
		}
	}
	return candidates[0]
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
// by a request for so many replicas; none if that is not known. The kubelet admits pods in the order of
// their creation, and their containers in that of the pod; so it asks for the
// first one that it has not admitted yet. A wrong one costs nothing but a
// device ID that names another GPU than its container gets.
func (t *shares) expected(size int) []string {
	resource := t.config().Resources.SGPU
	waiting := t.API.Await(preferTimeout, func(p *corev1.Pod) bool { return awaits(p, resource, size) })
	if len(waiting) == 0 {
		return nil
	}
	return t.gpusFor(waiting, resource, size)
}

// gpusFor are the GPUs of the first container of pods that wants so many.
func (t *shares) gpusFor(pods []*corev1.Pod, resource string, size int) []string {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	var candidates []expectation
	byUID := make(map[types.UID]*corev1.Pod, len(pods))
	for _, p := range pods {
		byUID[p.UID] = p
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			if n, ok := c.Resources.Limits[corev1.ResourceName(resource)]; ok && n.Value() == int64(size) {
				candidates = append(candidates, expectation{p.UID, c.Name})
			}
		}
	}
	one := t.expectations.first(candidates)
	return t.wanted(byUID[one.pod], one.container)
}

// wanted are the GPUs that a container will get, as far as it is known.
func (t *shares) wanted(p *corev1.Pod, container string) []string {
	c := t.config()
	var request quota.Request
	for _, one := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if one.Name == container {
			var err error
			if request, err = quota.ParseRequest(one.Resources.Limits, p.Annotations, c); err != nil {
				return nil
			}
		}
	}
	chosen, _, err := allocate.Scheduled(p, container, &request, t.NodeName, t.now.Load())
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
