package sgpu

import (
	"errors"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// FreeGPUs reads which whole GPUs nodes publish as free. It is safe for concurrent
// use.
type FreeGPUs struct {
	Domains wellknown.Domains
	nodes   AnnotationCache[*allocation.FreeGPUs]
}

// Selector is which whole GPUs a pod accepts, by the annotations use-gpuuuid and
// nouse-gpuuuid. A nil selector accepts any.
type Selector struct {
	// Resource is that of whole GPUs.
	Resource   corev1.ResourceName
	use, avoid []string
	free       *FreeGPUs
}

// Selector reads a pod's annotations; nil if it accepts any GPU. The error is of
// annotations that contradict each other.
func (f *FreeGPUs) Selector(annotations map[string]string) (*Selector, error) {
	use, avoid, err := quota.UUIDs(annotations, f.Domains)
	if err != nil || len(use) == 0 && len(avoid) == 0 {
		return nil, err
	}
	return &Selector{corev1.ResourceName(f.Domains.GPUResource()), use, avoid, f}, nil
}

// String is equal for selectors that accept the same; empty for nil.
func (s *Selector) String() string {
	if s == nil {
		return ""
	}
	return "use " + strings.Join(s.use, ",") + " nouse " + strings.Join(s.avoid, ",")
}

// Left is how many GPUs of a node are certainly left for such a pod: those that
// the node publishes as free and the pod accepts. Pods that came since the node
// published may each have got one of these. The error is of a node that does not
// publish its free GPUs.
func (s *Selector) Left(info framework.NodeInfo) (int64, error) {
	published, err := s.free.nodes.Read(info.Node(), wellknown.FreeGPUs, parseFree)
	if err != nil {
		return 0, err
	}
	n := min(int64(published.Held)-info.GetRequested().GetScalarResources()[s.Resource], 0)
	for _, g := range published.Free {
		parent := g.Of
		if parent == "" {
			parent = g.UUID
		}
		if quota.Accepts(s.use, s.avoid, g.UUID, parent) {
			n++
		}
	}
	return max(n, 0), nil
}

func parseFree(text string) (*allocation.FreeGPUs, error) {
	if text == "" {
		return nil, errors.New("node does not publish its free GPUs")
	}
	return allocation.ParseFreeGPUs(text)
}
