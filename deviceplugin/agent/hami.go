package agent

import (
	"context"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// hamiNode is the node's side of HAMi's protocol; it does nothing without an API
// server.
type hamiNode struct {
	*core
	bridge *hami.Plugin

	// gpus are the shared GPUs with what is taken, as they were last reconciled.
	gpus atomic.Pointer[[]quota.GPU]
	// open is true while the kubelet follows the list of shares.
	open atomic.Bool
}

func newHAMiNode(c *core) *hamiNode {
	h := &hamiNode{core: c}
	if c.API.Online() {
		h.bridge = hami.New(hami.Options{
			Node: c.NodeName, Watched: c.API, API: c.API, Log: c.Log,
		})
	}
	return h
}

// run serves HAMi until ctx ends.
func (h *hamiNode) run(ctx context.Context) error {
	if h.bridge == nil {
		return nil
	}
	return h.bridge.Run(ctx)
}

// sync gives the bridge the state.
func (h *hamiNode) sync() {
	if h.bridge != nil {
		h.bridge.Set(h.hamiState())
	}
}

// setOpen takes whether the kubelet follows the list of shares.
func (h *hamiNode) setOpen(open bool) {
	h.open.Store(open)
	h.sync()
}

// setGPUs takes what is left of the shared GPUs.
func (h *hamiNode) setGPUs(gpus []quota.GPU) {
	h.gpus.Store(&gpus)
	h.sync()
}

// report passes on how the allocations of HAMi's pods ended; each is reported
// once.
func (h *hamiNode) report() {
	defer h.sync()
	if h.bridge == nil || !h.config().SGPU.HAMi.Enabled {
		return
	}
	for _, b := range h.state.View().Allocations() {
		if b.By == allocation.ByHAMi {
			h.bridge.Bound(types.NamespacedName{Namespace: b.Namespace, Name: b.Pod}, types.UID(b.UID), true)
		}
	}
	for _, r := range h.state.Rejections() {
		h.bridge.Bound(types.NamespacedName{Namespace: r.Pod.Namespace, Name: r.Pod.Name}, types.UID(r.Pod.UID), false)
	}
}

// hamiState is what the bridge publishes.
func (h *hamiNode) hamiState() hami.State {
	c, m := h.config(), h.machine()
	state := hami.State{Enabled: c.SGPU.HAMi.Enabled, Resource: c.Resources.SGPU, Open: h.open.Load()}
	gpus := h.gpus.Load()
	if gpus == nil {
		return state
	}
	other := make(map[string]hami.Taken)
	if state.Enabled {
		for _, g := range h.state.View().GPUsWithout(allocation.ByHAMi) {
			load := quota.Load{Consumers: g.Consumers, VCore: g.VCore, MemoryMiB: g.UsedMiB}
			other[g.UUID] = hami.Taken{Load: load, Exclusive: g.Exclusive}
		}
	}
	for _, shared := range *gpus {
		g := hami.GPU{GPU: shared, Other: other[shared.UUID]}
		if found := gpuAt(m, g.UUID); found != nil {
			g.BDF, g.Model = found.PCI, found.Product
		}
		state.GPUs = append(state.GPUs, g)
	}
	if m != nil {
		for i := range m.GPUs {
			state.Local = append(state.Local, m.GPUs[i].UUID)
		}
	}
	return state
}

func gpuAt(m *machine.Machine, uuid string) *machine.GPU {
	if i := slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == uuid }); i >= 0 {
		return &m.GPUs[i]
	}
	return nil
}
