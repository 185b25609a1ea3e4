package cards

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/sharing"
)

// sheet is what a node's cards had left at a generation. Generations are never
// used twice, by any node, and everything that Free reads changes with them:
// the Node, its pods, and what was decided for a pod, which is on the node only
// from its decision on.
type sheet struct {
	generation int64
	cards      []sharing.Card
	err        error
	// pods are what the node's pods say. An object of the API is never changed,
	// so the same one still says the same.
	pods map[*corev1.Pod]*words
}

// Now is Free, of a node as the scheduler has it. Filter and Score ask it of
// every node for every pod, and one node at most has changed since, by one pod:
// nothing else is read again.
func (b *Book) Now(
	info framework.NodeInfo, decided func(types.UID) *allocation.Allocation,
) ([]sharing.Card, error) {
	node := info.Node()
	var had *sheet
	if last, ok := b.sheets.Load(node.Name); ok {
		if had, _ = last.(*sheet); had != nil && had.generation == info.GetGeneration() {
			return slices.Clone(had.cards), had.err
		}
	}
	now := &sheet{generation: info.GetGeneration(), pods: make(map[*corev1.Pod]*words, len(info.GetPods()))}
	all := make([]*words, 0, len(info.GetPods()))
	for _, p := range info.GetPods() {
		pod := p.GetPod()
		var said *words
		if had != nil {
			said = had.pods[pod]
		}
		if said == nil {
			said = b.listen(pod)
		}
		now.pods[pod] = said
		all = append(all, said)
	}
	now.cards, now.err = b.free(node, all, decided)
	b.sheets.Store(node.Name, now)
	return slices.Clone(now.cards), now.err
}
