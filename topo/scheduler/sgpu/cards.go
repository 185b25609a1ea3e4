// Package sgpu keeps account of shared GPUs card by card, for a scheduler: what
// the cards of a node have left, and which ones a pod gets.
//
// It owns the order in which what is said is believed. A Node's annotation says
// which cards there are and whether they are well; what is taken of them is
// counted from the pods that are on the node: what the node bound
// (heddle.dev/sgpu-bound) before what a scheduler decided
// (heddle.dev/sgpu-allocation) before what this scheduler is about to decide.
// Only for pods that say nothing the Node's own count is the least. Which card
// is best is package sharing's.
//
// Of whole GPUs it knows which ones a node says are free, for pods that name
// those that they accept.
package sgpu

import (
	"errors"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Load is how full cards are, 0 to 100: the mean of compute and memory taken.
func Load(cards []quota.GPU) int64 {
	if len(cards) == 0 {
		return 0
	}
	sum := int64(0)
	for i := range cards {
		c := &cards[i]
		sum += min(int64(c.VCore), quota.Whole)
		if c.MemoryMiB > 0 {
			sum += min(100*c.UsedMiB/c.MemoryMiB, 100)
		} else if c.Consumers > 0 {
			sum += 100
		}
	}
	return sum / int64(2*len(cards))
}

// Book reads nodes, and remembers what it read. Many may ask at once.
type Book struct {
	// Config has the names of resources and annotations.
	Config *config.NodeConfig

	nodes sync.Map
	// sheets are what Now found out.
	sheets sync.Map
}

type page struct {
	text  string
	cards []quota.GPU
	err   error
}

// Free are the cards of a node with what is taken now. decided are decisions
// that the pods do not show yet. The error is that of the Node's annotation.
func (b *Book) Free(
	node *corev1.Node, pods []*corev1.Pod, decided func(types.UID) *allocation.Allocation,
) ([]quota.GPU, error) {
	words := make([]*words, 0, len(pods))
	for _, pod := range pods {
		words = append(words, b.listen(pod))
	}
	return b.free(node, words, decided)
}

func (b *Book) free(
	node *corev1.Node, pods []*words, decided func(types.UID) *allocation.Allocation,
) ([]quota.GPU, error) {
	p := b.read(node)
	if p.err != nil {
		return nil, p.err
	}
	cards := slices.Clone(p.cards)
	for i := range cards {
		c := &cards[i]
		c.VCore, c.UsedMiB, c.Consumers, c.Policy, c.Exclusive = 0, 0, 0, "", false
	}
	silent := false
	for _, w := range pods {
		if w.want != nil {
			silent = w.charge(cards, node.Name, decided(w.pod.UID)) || silent
		}
	}
	if silent {
		for i := range cards {
			atLeast(&cards[i], &p.cards[i])
		}
	}
	return cards, nil
}

// Forget is for nodes that are gone.
func (b *Book) Forget(node string) {
	b.nodes.Delete(node)
	b.sheets.Delete(node)
}

func (b *Book) read(node *corev1.Node) *page {
	text := node.Annotations[wellknown.SGPUCards]
	if had, ok := b.nodes.Load(node.Name); ok {
		if had, ok := had.(*page); ok && had.text == text {
			return had
		}
	}
	now := &page{text: text}
	if text == "" {
		now.err = errors.New("node has no shared cards")
	} else if all, err := allocation.ParseNodeGPUs(text); err != nil {
		now.err = err
	} else {
		now.cards = quota.Published(all)
	}
	b.nodes.Store(node.Name, now)
	return now
}

// words are what a pod says of its cards.
type words struct {
	pod *corev1.Pod
	// want is nil for a pod that shares no card, or none that a node would bind.
	want *Want
	// bound and chosen are nil if there is no such annotation, or it is nonsense.
	bound  *allocation.Bound
	chosen *allocation.Allocation
}

// listen reads a pod.
func (b *Book) listen(pod *corev1.Pod) *words {
	w := &words{pod: pod}
	want, err := Read(pod, b.Config)
	if err != nil {
		return w
	}
	w.want = want
	if text, ok := pod.Annotations[wellknown.SGPUBound]; ok {
		w.bound, _ = allocation.ParseBound(text) // Nonsense is nothing.
	}
	if text, ok := pod.Annotations[wellknown.SGPUAllocation]; ok {
		w.chosen, _ = allocation.ParseAllocation(text)
	}
	return w
}

// charge takes what a pod has: the most that any of its turns comes to. silent
// tells that nobody says what a container of it has.
func (w *words) charge(cards []quota.GPU, node string, decided *allocation.Allocation) (silent bool) {
	var bound map[string]allocation.BoundContainer
	if w.bound != nil && w.bound.Node == node {
		bound = w.bound.Containers
	}
	chosen := w.chosen
	if _, ok := w.pod.Annotations[wellknown.SGPUAllocation]; !ok {
		chosen = decided
	}
	var shares map[string][]allocation.Share
	if chosen != nil && chosen.Node == node {
		shares = chosen.Containers
	}
	claims := make([][]quota.Claim, len(cards))
	for i := range w.want.containers {
		c := &w.want.containers[i]
		shares, policy := shares[c.name], c.request.Policy
		if said, ok := bound[c.name]; ok {
			shares, policy = said.Shares, quota.Policy(said.Policy)
		}
		silent = silent || len(shares) == 0
		for _, share := range shares {
			at := slices.IndexFunc(cards, func(card quota.GPU) bool { return card.UUID == share.UUID })
			if at >= 0 {
				claims[at] = append(claims[at], quota.Claim{Phase: c.turn, Share: share, Policy: policy})
			}
		}
	}
	for at := range cards {
		if len(claims[at]) > 0 {
			take(&cards[at], claims[at], nil)
		}
	}
	return silent
}

// atLeast raises what is taken of a card to what its node says.
func atLeast(c, said *quota.GPU) {
	c.VCore, c.UsedMiB = max(c.VCore, said.VCore), max(c.UsedMiB, said.UsedMiB)
	c.Consumers = max(c.Consumers, said.Consumers)
	c.Exclusive = c.Exclusive || said.Exclusive
	if c.Policy == "" {
		c.Policy = said.Policy
	}
}
