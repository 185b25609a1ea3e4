package scheduler

import (
	"context"
	"encoding/json"
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/names"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// noMark is the mark of a node that publishes nothing about a request: it never
// wins over one that does.
const noMark = math.MinInt64

// maxTable is the longest annotation with a GPU topology that is read, in
// bytes: 64 entries.
const maxTable = 16 << 10

// maxScore bounds what a node says of itself.
const maxScore = 1 << 40

// Score marks a node by its published GPU topology: what the GPUs that it would
// give are worth together, and what that costs the rest. Pods without GPUs, and
// members of gangs, have one node or no preference.
func (p *Plugin) Score(
	_ context.Context, _ framework.CycleState, pod *corev1.Pod, info framework.NodeInfo,
) (int64, *framework.Status) {
	gpus := gpusOf(pod, corev1.ResourceName(p.book.domains.GPUResource()))
	if gpus == 0 {
		return 0, nil
	}
	return mark(info.Node().Annotations[names.GPUTopology], gpus, p.args.GPUAware), nil
}

func gpusOf(pod *corev1.Pod, name corev1.ResourceName) int64 {
	for _, a := range fit.Requests(pod) {
		if a.Resource == name {
			return a.Value
		}
	}
	return 0
}

// mark reads {"n": {"score": ..., "loss": ...}}.
func mark(text string, gpus int64, w Weights) int64 {
	if text == "" || len(text) > maxTable {
		return noMark
	}
	var table map[string]struct {
		Score, Loss *int64
	}
	if json.Unmarshal([]byte(text), &table) != nil {
		return noMark
	}
	entry, ok := table[strconv.FormatInt(gpus, 10)]
	if !ok || entry.Score == nil || entry.Loss == nil {
		return noMark
	}
	if *entry.Score < 0 || *entry.Score > maxScore || *entry.Loss < 0 || *entry.Loss > maxScore {
		return noMark
	}
	return w.Weight**entry.Score - w.LossWeight**entry.Loss
}

// ScoreExtensions brings marks to the framework's scale.
func (p *Plugin) ScoreExtensions() framework.ScoreExtensions { return p }

// NormalizeScore maps marks to 1 to 100, and none to 0. Equal marks are all
// 100.
func (p *Plugin) NormalizeScore(
	_ context.Context, _ framework.CycleState, pod *corev1.Pod, scores framework.NodeScoreList,
) *framework.Status {
	if gpusOf(pod, corev1.ResourceName(p.book.domains.GPUResource())) == 0 {
		return nil
	}
	least, most := int64(math.MaxInt64), int64(math.MinInt64)
	for i := range scores {
		if s := scores[i].Score; s != noMark {
			least, most = min(least, s), max(most, s)
		}
	}
	for i := range scores {
		switch s := scores[i].Score; {
		case s == noMark:
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

// particular tells whether a pod's place depends on annotations or on shares.
func (p *Plugin) particular(pod *corev1.Pod) bool {
	d := p.book.domains
	for _, key := range []string{d.UseGPUUUID(), d.NoUseGPUUUID(), names.UseGPUUUIDAlias, names.NoUseGPUUUIDAlias} {
		if pod.Annotations[key] != "" {
			return true
		}
	}
	for i := range pod.Spec.Containers {
		limits := pod.Spec.Containers[i].Resources.Limits
		for _, name := range []string{d.SGPUResource(), d.VCoreResource(), d.VMemoryResource()} {
			if _, ok := limits[corev1.ResourceName(name)]; ok {
				return true
			}
		}
	}
	return false
}
