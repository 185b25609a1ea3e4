package sgpu

import (
	"cmp"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Weights weighs a node's published GPU topology. The node's score is Weight times the score of the
// GPUs that it would allocate, minus LossWeight times the loss of its other GPUs.
type Weights struct {
	Weight     float64 `json:"weight"`
	LossWeight float64 `json:"loss.weight"`
}

const (
	// MaxWeight bounds weights, so that no score overflows.
	MaxWeight = 1000
	// noScore is for a node that publishes nothing about a request: it never wins over
	// one that does.
	noScore = math.MinInt64
)

// Use is how the GPUs of a node are used, in percent of one GPU.
type Use struct {
	// Total is all of them.
	Total int64
	// Idle is what pods have left, and Parts what of it is on GPUs that shares use.
	Idle, Parts int64
	// Rest is what is left of the GPUs of one request, and Load how full the node's shared GPUs are, 0 to 100.
	Rest, Load int64
}

// Use returns how the GPUs of a node are used with a request for shares, or without one if it is nil.
func (s *Scheduler) Use(r *Request, info framework.NodeInfo) (use Use) {
	var left []quota.GPU
	if info.Node().Annotations[wellknown.SharedGPUs] != "" { // The lookup costs less than the state.
		left = s.state(info).left
	}
	gpus := left
	if r != nil {
		gpus = slices.Clone(left)
		r.place(gpus, s.placement) // It fits, or the pod would not come here.
	}
	for i := range gpus {
		n := rest(&gpus[i])
		use.Idle += n
		if gpus[i].Consumers > 0 {
			use.Parts += n
		}
		if gpus[i].Consumers > left[i].Consumers {
			use.Rest += n
		}
	}
	use.Total = int64(quota.Whole * len(gpus))
	use.Load = quota.Whole - use.Idle/int64(max(1, len(gpus)))
	for _, gpu := range s.gpus {
		allocatable, requested := info.GetAllocatable().GetScalarResources(), info.GetRequested().GetScalarResources()
		use.Total += quota.Whole * allocatable[gpu]
		use.Idle += quota.Whole * max(0, allocatable[gpu]-requested[gpu])
	}
	return use
}

// rest returns what is left of a GPU: of compute and memory the scarcer one.
func rest(g *quota.GPU) int64 {
	left := int64(quota.Whole - g.VCore)
	switch {
	case g.Exclusive || g.Unhealthy != "" || g.MemoryMiB <= 0 && g.Consumers > 0:
		return 0
	case g.MemoryMiB > 0:
		left = min(left, quota.Whole*(g.Room()-g.UsedMiB)/g.Room())
	}
	return max(0, left)
}

// Spreads reports whether a request goes to the emptiest nodes.
func (s *Scheduler) Spreads(r *Request) bool {
	return cmp.Or(r.node, s.placement) == config.PlacementSpread
}

// GPUs returns the GPUs that a request takes, in percent of one GPU, as far as it states them.
func (r *Request) GPUs() (sum int64) {
	for i := range r.containers {
		c := &r.containers[i].request
		sum += int64(c.GPUs * max(c.VCore, c.MemoryPercent, 1))
	}
	return sum
}

// Topology returns the score of a node for whole GPUs of a resource, by its published topology.
func (s *Scheduler) Topology(gpu corev1.ResourceName, gpus int64, w Weights, node *corev1.Node) int64 {
	return s.published(node).score(gpu, gpus, w)
}

// score returns the score of a request for this number of GPUs of a resource.
func (p *published) score(gpu corev1.ResourceName, gpus int64, w Weights) int64 {
	if p.free != nil && p.free.Resource != "" && p.free.Resource != string(gpu) {
		return noScore // The table is of another maker's GPUs.
	}
	score, loss, ok := p.topology.Of(gpus)
	if !ok {
		return noScore
	}
	return int64(math.Round(w.Weight*float64(score) - w.LossWeight*float64(loss)))
}
