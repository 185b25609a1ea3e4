package hami

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// publish writes the Node's annotation if it differs.
func (b *Plugin) publish(ctx context.Context, node *corev1.Node, state *State) error {
	has, there := node.Annotations[wellknown.HAMiGPUs]
	want := annotation(has, there, state)
	if want == nil && !there || want != nil && there && *want == has {
		return nil
	}
	if err := b.API.AnnotateNode(ctx, "", map[string]*string{wellknown.HAMiGPUs: want}); err != nil {
		return fmt.Errorf("publish GPUs for HAMi: %w", err)
	}
	b.Log.DebugContext(ctx, "published GPUs for HAMi",
		"open", state.Open, "gpus", len(state.GPUs), "removed", want == nil)
	return nil
}

// annotation returns the wanted value, nil for none. HAMi drops the GPUs
// of a node without one within 15 s, and goes on counting pods of one with
// unhealthy GPUs. So a node that is closed for a moment keeps it, and one
// that has never been open gets none.
func annotation(has string, there bool, state *State) *string {
	switch {
	case !state.Enabled, len(state.GPUs) == 0:
		if there && !isLocal(has, state.Local) {
			// Another plugin's: the node may have GPUs of another vendor.
			return &has
		}
		return nil
	case !state.Open && !there:
		return nil
	}
	return new(Annotation(state.GPUs, state.Open))
}

// isLocal reports whether an annotation names a GPU of this machine.
func isLocal(has string, local []string) bool {
	list, err := ParseNodeGPUs(has)
	return err == nil && slices.ContainsFunc(list, func(g NodeGPU) bool {
		return slices.Contains(local, g.UUID)
	})
}

// GPU holds one shared GPU and its use.
type GPU struct {
	quota.GPU
	// BDF is the PCI address, Model the product's name; "" is unknown.
	BDF, Model string
	// Other is the GPU as those consumers use it for which HAMi did not choose it: HAMi does not count them.
	Other quota.GPU
}

// Annotation returns the value of [wellknown.HAMiGPUs]: the GPUs by Index, because
// HAMi takes the place in the list for the index. If open is false, every GPU is
// unhealthy.
func Annotation(gpus []GPU, open bool) string {
	sorted := slices.SortedStableFunc(slices.Values(gpus), func(a, b GPU) int { return cmp.Compare(a.Index, b.Index) })
	list := make(NodeGPUs, 0, len(sorted))
	for i := range sorted {
		list = append(list, entry(&sorted[i], open))
	}
	return list.String()
}

// entry has as totals what HAMi's pods can have: HAMi counts its own pods alone, so
// that what others have would look free to it, and their GPU be chosen again and again.
func entry(c *GPU, open bool) NodeGPU {
	slots, compute := c.Slots-c.Other.Consumers, quota.Whole-c.Other.VCore
	switch {
	case c.Other.Exclusive, c.Other.Consumers > 0 && c.Other.UsedMiB >= c.MemoryMiB:
		slots, compute = 0, 0 // Without memory a request for all of it would fit.
	case c.Other.Consumers > 0:
		compute = min(compute, quota.Whole-1) // 100 is a GPU without other consumers to HAMi.
	}
	one := NodeGPU{
		UUID: c.UUID, BDF: c.BDF, Model: c.Model,
		TotalDevCount: limit(slots), TotalCompute: limit(compute), TotalVRam: limit(c.MemoryMiB - c.Other.UsedMiB),
		NUMA: c.NUMA, Healthy: c.Unhealthy == "" && open, LinkZone: limit(c.Zone),
	}
	// HAMi expects no policy on a GPU that one consumer has exclusively.
	if c.Consumers > 0 && !c.Exclusive {
		one.QoSPolicy = string(c.Policy)
	}
	return one
}

// limit fits a number into HAMi's fields.
func limit[N int | int64](n N) int32 { return int32(min(max(int64(n), 0), math.MaxInt32)) }

const (
	phaseSuccess = "success"
	phaseFailed  = "failed"
)

// writePhases annotates the pods that HAMi bound with what came of it. Success stays: a container that
// fails to start again has failed after the binding.
func (b *Plugin) writePhases(ctx context.Context, state *State) error {
	pods, _, _ := b.Watched.Pods()
	var errs []error
	for _, p := range pods {
		ok, known := state.Prepared[p.UID]
		had, phase := p.Annotations[wellknown.HAMiBindPhase], phaseFailed
		if ok {
			phase = phaseSuccess
		}
		if _, bound := p.Annotations[wellknown.HAMiBindTime]; !known || !bound || had == phase || had == phaseSuccess {
			continue
		}
		name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		err := b.API.AnnotatePod(ctx, name, p.UID, map[string]*string{wellknown.HAMiBindPhase: &phase})
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // The pod is gone, or another one has its name.
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
