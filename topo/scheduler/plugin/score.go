package plugin

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

const (
	// noMark is the mark of a node that publishes nothing about a request: it
	// never wins over one that does.
	noMark = math.MinInt64
	// maxTable is the longest annotation with a GPU topology that is read, in
	// bytes, and maxScore bounds what a node says of itself.
	maxTable = 16 << 10
	maxScore = 1 << 40
	// fullest is a node whose GPUs are all in use.
	fullest = 100

	scoreKey framework.StateKey = Name + "/score"
)

// wanted is what a pod wants, for Score: GPUs, or shares of some.
type wanted struct {
	gpu    corev1.ResourceName
	gpus   int64
	shares *sgpu.Want
}

// Clone is for the framework.
func (w *wanted) Clone() framework.StateData { return w }

// PreScore leaves out pods without GPUs, and members of gangs, whose place is
// decided.
func (p *Plugin) PreScore(
	_ context.Context, state framework.CycleState, pod *corev1.Pod, _ []framework.NodeInfo,
) *framework.Status {
	w := wanted{gpu: p.gpu()}
	if c := read(state); c != nil {
		if c.node != "" {
			return framework.NewStatus(framework.Skip)
		}
		w.shares = c.shares
	}
	if w.shares == nil {
		if w.gpus = fit.AmountOf(fit.Requests(pod), w.gpu); w.gpus == 0 {
			return framework.NewStatus(framework.Skip)
		}
	}
	state.Write(scoreKey, &w)
	return nil
}

// Score marks a node by its published GPU topology: what the GPUs that it would
// give are worth together, and what that costs the rest; among equal ones, and
// among those that publish nothing, by how many of its GPUs are in use already.
// For a pod that shares cards it is how full these are.
func (p *Plugin) Score(
	_ context.Context, state framework.CycleState, _ *corev1.Pod, info framework.NodeInfo,
) (int64, *framework.Status) {
	data, err := state.Read(scoreKey)
	if err != nil {
		return noMark, nil
	}
	w, _ := data.(*wanted)
	if w.shares != nil {
		return p.scoreShares(w.shares, info), nil
	}
	mark, node := int64(noMark), info.Node()
	if text := node.Annotations[wellknown.GPUTopology]; text != "" {
		mark = p.tables.of(node.Name, text).mark(w.gpus, p.args.GPUAware)
	}
	if mark != noMark {
		mark *= fullest + 1
	}
	return mark + full(info, w.gpu), nil
}

// full is how many of a node's GPUs are in use, 0 to fullest.
func full(info framework.NodeInfo, gpu corev1.ResourceName) int64 {
	has := info.GetAllocatable().GetScalarResources()[gpu]
	if has <= 0 {
		return 0
	}
	return fullest * min(max(info.GetRequested().GetScalarResources()[gpu], 0), has) / has
}

// ScoreExtensions brings marks to the framework's scale.
func (p *Plugin) ScoreExtensions() framework.ScoreExtensions { return p }

// NormalizeScore maps marks to 1 to 100, and those of nodes that publish nothing
// to 0, unless none does. Equal marks are all 100.
func (*Plugin) NormalizeScore(
	_ context.Context, _ framework.CycleState, _ *corev1.Pod, scores framework.NodeScoreList,
) *framework.Status {
	silent := func(score int64) bool { return score <= noMark+fullest }
	speaks := func(s framework.NodeScore) bool { return !silent(s.Score) }
	anybody := slices.ContainsFunc(scores, speaks)
	least, most := int64(math.MaxInt64), int64(math.MinInt64)
	for i := range scores {
		if s := scores[i].Score; !anybody || !silent(s) {
			least, most = min(least, s), max(most, s)
		}
	}
	for i := range scores {
		switch s := scores[i].Score; {
		case anybody && silent(s):
			scores[i].Score = framework.MinScore
		case most == least:
			scores[i].Score = framework.MaxScore
		default:
			part := float64(s-least) / float64(most-least)
			scores[i].Score = 1 + int64(part*float64(framework.MaxScore-1))
		}
	}
	return nil
}

// topology is a node's table: what a request for n GPUs would get, and cost.
type topology map[string]struct {
	Score *int64 `json:"score"`
	Loss  *int64 `json:"loss"`
}

// readTopology is empty for what is no table.
func readTopology(text string) topology {
	if len(text) > maxTable {
		return nil
	}
	var t topology
	if json.Unmarshal([]byte(text), &t) != nil {
		return nil
	}
	return t
}

func (t topology) mark(gpus int64, w Weights) int64 {
	entry, ok := t[strconv.FormatInt(gpus, 10)]
	if !ok || entry.Score == nil || entry.Loss == nil {
		return noMark
	}
	if *entry.Score < 0 || *entry.Score > maxScore || *entry.Loss < 0 || *entry.Loss > maxScore {
		return noMark
	}
	return w.Weight**entry.Score - w.LossWeight**entry.Loss
}

// tables remembers what was read of each node; Score runs for many at once.
type tables struct{ nodes sync.Map }

type table struct {
	text string
	read topology
}

func (t *tables) of(node, text string) topology {
	if had, ok := t.nodes.Load(node); ok {
		if had, ok := had.(*table); ok && had.text == text {
			return had.read
		}
	}
	now := &table{text, readTopology(text)}
	t.nodes.Store(node, now)
	return now.read
}

func (t *tables) forget(node string) { t.nodes.Delete(node) }
