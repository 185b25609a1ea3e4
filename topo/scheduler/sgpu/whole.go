package sgpu

import (
	"errors"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Chosen is which whole GPUs a pod accepts, by the annotations use-gpuuuid and
// nouse-gpuuuid.
type Chosen struct{ use, avoid []string }

// ReadChosen is what a pod's annotations say. It is nil for a pod that accepts
// any GPU; the error is of annotations that contradict each other.
func ReadChosen(annotations map[string]string, d wellknown.Domains) (*Chosen, error) {
	use, avoid, err := quota.UUIDs(annotations, d)
	if err != nil || len(use) == 0 && len(avoid) == 0 {
		return nil, err
	}
	return &Chosen{use, avoid}, nil
}

// String is equal for pods that choose alike.
func (c *Chosen) String() string {
	return "use " + strings.Join(c.use, ",") + " nouse " + strings.Join(c.avoid, ",")
}

// Whole reads which whole GPUs nodes have, and remembers what it read. Many may
// ask at once.
type Whole struct{ nodes sync.Map }

type freePage struct {
	text string
	free *allocation.FreeGPUs
	err  error
}

// Left is how many GPUs of a node are certainly left for such a pod, when the
// pods that the scheduler has there ask for so many: those that the node says
// are free and the pod accepts. Of who came since the node said so nobody knows
// which GPUs they get, so each may have one of these. The error is of a node
// that does not say.
func (w *Whole) Left(c *Chosen, node *corev1.Node, asked int64) (int64, error) {
	p := w.read(node)
	if p.err != nil {
		return 0, p.err
	}
	n := min(int64(p.free.Held)-asked, 0)
	for _, g := range p.free.Free {
		parent := g.Of
		if parent == "" {
			parent = g.UUID
		}
		if quota.Accepts(c.use, c.avoid, g.UUID, parent) {
			n++
		}
	}
	return max(n, 0), nil
}

// Forget is for nodes that are gone.
func (w *Whole) Forget(node string) { w.nodes.Delete(node) }

func (w *Whole) read(node *corev1.Node) *freePage {
	text := node.Annotations[wellknown.FreeGPUs]
	if had, ok := w.nodes.Load(node.Name); ok {
		if had, ok := had.(*freePage); ok && had.text == text {
			return had
		}
	}
	now := &freePage{text: text}
	if text == "" {
		now.err = errors.New("node does not say which GPUs are free")
	} else {
		now.free, now.err = allocation.ParseFreeGPUs(text)
	}
	w.nodes.Store(node.Name, now)
	return now
}
