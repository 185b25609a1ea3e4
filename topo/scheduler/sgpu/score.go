package sgpu

import (
	"cmp"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/config"
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
	// full is the use of a node with all GPUs in use.
	full = 100
)

// ScoreShares returns the score of a node for shares: how full its GPUs would be, or how free if
// the policy is spread.
func (s *Scheduler) ScoreShares(r *Request, info framework.NodeInfo) int64 {
	gpus := slices.Clone(s.state(info).left)
	switch _, reason := r.place(gpus, s.placement); {
	case reason != "":
		return noScore
	case cmp.Or(r.node, s.placement) == config.PlacementSpread:
		return framework.MaxScore - load(gpus)
	}
	return load(gpus)
}

// load returns the use of GPUs, 0 to 100: the mean of compute and memory taken.
func load(gpus []quota.GPU) int64 {
	if len(gpus) == 0 {
		return 0
	}
	sum := int64(0)
	for i := range gpus {
		g := &gpus[i]
		sum += min(int64(g.VCore), quota.Whole)
		if g.MemoryMiB > 0 {
			sum += min(100*g.UsedMiB/g.Room(), 100)
		} else if g.Consumers > 0 {
			sum += 100
		}
	}
	return sum / int64(2*len(gpus))
}

// ScoreGPUs returns the score of a node for whole GPUs of a resource, by its published topology; among
// equal nodes, and those that publish nothing, by how many of its GPUs are in use.
func (s *Scheduler) ScoreGPUs(
	gpu corev1.ResourceName, gpus int64, w Weights, info framework.NodeInfo,
) int64 {
	score := s.published(info.Node()).score(gpu, gpus, w)
	if score != noScore {
		score *= full + 1
	}
	allocatable := info.GetAllocatable().GetScalarResources()[gpu]
	if allocatable <= 0 {
		return score
	}
	return score + full*min(max(info.GetRequested().GetScalarResources()[gpu], 0), allocatable)/allocatable
}

// AllEqual reports whether all nodes that a pod fits on have the same score for whole GPUs of a
// resource, as for pods that take all GPUs of equal nodes. Then Score need not run for each node.
// It reports false for a pod that may fit on a node twice: kube-scheduler takes the scores of one
// pod for the next that is equal, and would miss those of a node that got the first.
func (s *Scheduler) AllEqual(gpu corev1.ResourceName, gpus int64, w Weights, nodes []framework.NodeInfo) bool {
	return !slices.ContainsFunc(nodes, func(n framework.NodeInfo) bool {
		twice := n.GetAllocatable().GetScalarResources()[gpu] >= 2*gpus
		return twice || s.ScoreGPUs(gpu, gpus, w, n) != s.ScoreGPUs(gpu, gpus, w, nodes[0])
	})
}

// Normalize maps scores to 1 to 100. Nodes that publish nothing get 0 if other nodes publish. Equal
// scores are all 100.
func Normalize(scores framework.NodeScoreList) {
	published := func(score int64) bool { return score > noScore+full }
	some := slices.ContainsFunc(scores, func(s framework.NodeScore) bool { return published(s.Score) })
	least, most := int64(math.MaxInt64), int64(math.MinInt64)
	for i := range scores {
		if s := scores[i].Score; !some || published(s) {
			least, most = min(least, s), max(most, s)
		}
	}
	for i := range scores {
		switch s := scores[i].Score; {
		case some && !published(s):
			scores[i].Score = framework.MinScore
		case most == least:
			scores[i].Score = framework.MaxScore
		default:
			part := float64(s-least) / float64(most-least)
			scores[i].Score = 1 + int64(part*float64(framework.MaxScore-1))
		}
	}
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
