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
}

// Now is Free, of a node as the scheduler has it. Filter and Score ask it of
// every node for every pod, and one node at most has changed since: the pods of
// the others are not read again.
func (b *Book) Now(
	info framework.NodeInfo, decided func(types.UID) *allocation.Allocation,
) ([]sharing.Card, error) {
	node := info.Node()
	if had, ok := b.sheets.Load(node.Name); ok {
		if s, ok := had.(*sheet); ok && s.generation == info.GetGeneration() {
			return slices.Clone(s.cards), s.err
		}
	}
	pods := make([]*corev1.Pod, 0, len(info.GetPods()))
	for _, pod := range info.GetPods() {
		pods = append(pods, pod.GetPod())
	}
	s := &sheet{generation: info.GetGeneration()}
	s.cards, s.err = b.Free(node, pods, decided)
	b.sheets.Store(node.Name, s)
	return slices.Clone(s.cards), s.err
}
