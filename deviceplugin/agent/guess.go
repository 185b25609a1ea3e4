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

// guessTimeout is how long a preference waits for a pod to be known: less than
// for whole GPUs, since nothing depends on it.
const guessTimeout = 10 * time.Millisecond

// guessedFor is how long a container that was guessed is not guessed again:
// until then its pod says that the kubelet has admitted it.
const guessedFor = 5 * time.Second

// guesses are the containers for which slots were chosen a moment ago.
type guesses struct {
	mu  sync.Mutex
	all map[guess]time.Time // guarded by mu
}

type guess struct {
	pod       types.UID
	container string
}

// first notes and returns the first that was not guessed a moment ago.
func (g *guesses) first(candidates []guess) guess {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for one, at := range g.all {
		if now.Sub(at) > guessedFor {
			delete(g.all, one)
		}
	}
	if g.all == nil {
		g.all = map[guess]time.Time{}
	}
	for _, one := range candidates {
		if _, done := g.all[one]; !done {
			g.all[one] = now
			return one
		}
	}
	return candidates[0]
}

var _ sgpu.Pods = (*tenancy)(nil)

// Expected implements [sgpu.Pods]. The kubelet admits pods in the order of
// their creation, and their containers in that of the pod; so it asks for the
// first one that it has not admitted yet. A wrong guess costs nothing but a
// ticket that names another card than its container gets.
func (t *tenancy) Expected(size int) []string {
	resource := t.agent.config().Resources.SGPU
	waiting := t.agent.API.Await(guessTimeout, func(p *corev1.Pod) bool { return awaits(p, resource, size) })
	if len(waiting) == 0 {
		return nil
	}
	return t.cardsFor(waiting, resource, size)
}

// cardsFor are the cards of the first container of pods that wants so many.
func (t *tenancy) cardsFor(pods []*corev1.Pod, resource string, size int) []string {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	var candidates []guess
	byUID := make(map[types.UID]*corev1.Pod, len(pods))
	for _, p := range pods {
		byUID[p.UID] = p
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			if n, ok := c.Resources.Limits[corev1.ResourceName(resource)]; ok && n.Value() == int64(size) {
				candidates = append(candidates, guess{p.UID, c.Name})
			}
		}
	}
	one := t.guesses.first(candidates)
	return t.wanted(byUID[one.pod], one.container)
}

// wanted are the cards that a container will be bound to, as far as anybody can
// tell.
func (t *tenancy) wanted(p *corev1.Pod, container string) []string {
	c := t.agent.config()
	var request quota.Request
	for _, one := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if one.Name == container {
			var err error
			if request, err = quota.ParseRequest(one.Resources.Limits, p.Annotations, c); err != nil {
				return nil
			}
		}
	}
	chosen, _, err := allocate.Scheduled(p, container, &request, t.agent.NodeName, t.agent.now.Load())
	if err != nil || len(chosen) > 0 {
		return chosen
	}
	cards := t.agent.state.View().GPUs()
	places, _ := quota.Place(cards, &request, c.SGPU.Placement, nil)
	uuids := make([]string, len(places))
	for i, place := range places {
		uuids[i] = cards[place].UUID
	}
	return uuids
}
