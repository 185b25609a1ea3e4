package sgpu

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// sheet is what a node's cards had left at a generation. Generations are never
// used twice, by any node, and everything that Free reads changes with them:
// the Node, its pods, and what was decided for a pod, which is on the node only
// from its decision on.
type sheet struct {
	generation int64
	// count is how many pods it had: in a PodGroup's cycle members are tried out
	// without another generation.
	count int
	cards []quota.GPU
	err   error
	// pods are what the node's pods say. An object of the API is never changed,
	// so the same one still says the same.
	pods map[*corev1.Pod]*words

	mu sync.Mutex
	// answers are those of Try.
	answers map[question]answer
}

// question is what is wanted, and how cards are chosen unless that says it.
type question struct {
	want key
	how  config.Placement
}

// answer is how full the cards would be, or why there are none.
type answer struct {
	load int64
	why  string
}

// maxAnswers bounds what is remembered of a node that does not change.
const maxAnswers = 64

// Now is Free, of a node as the scheduler has it. Filter and Score ask it of
// every node for every pod, and one node at most has changed since, by one pod:
// nothing else is read again.
func (b *Book) Now(
	info framework.NodeInfo, decided func(types.UID) *allocation.Allocation,
) ([]quota.GPU, error) {
	s := b.sheet(info, decided)
	return slices.Clone(s.cards), s.err
}

// Try tells how full a node's cards would be with what a pod wants, 0 to 100, or
// why they have no room for it. Pods that want the same are answered once, until
// the node changes.
func (b *Book) Try(
	info framework.NodeInfo, w *Want, how config.Placement, decided func(types.UID) *allocation.Allocation,
) (load int64, why string, err error) {
	s := b.sheet(info, decided)
	if s.err != nil {
		return 0, "", s.err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := question{w.key, how}
	if a, ok := s.answers[q]; ok {
		return a.load, a.why, nil
	}
	free := slices.Clone(s.cards)
	var a answer
	if _, a.why = w.Place(free, how); a.why == "" {
		a.load = Load(free)
	}
	if w.key != (key{}) && len(s.answers) < maxAnswers {
		s.answers[q] = a
	}
	return a.load, a.why, nil
}

// sheet is what is known of a node, of which what changed is read anew.
func (b *Book) sheet(info framework.NodeInfo, decided func(types.UID) *allocation.Allocation) *sheet {
	node := info.Node()
	var had *sheet
	if last, ok := b.sheets.Load(node.Name); ok {
		if had, _ = last.(*sheet); had != nil && had.generation == info.GetGeneration() && had.count == len(info.GetPods()) {
			return had
		}
	}
	now := &sheet{
		generation: info.GetGeneration(), count: len(info.GetPods()), answers: map[question]answer{},
		pods: make(map[*corev1.Pod]*words, len(info.GetPods())),
	}
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
	return now
}
