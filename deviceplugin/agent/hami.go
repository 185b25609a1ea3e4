package agent

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// hamiNode is the node's side of HAMi's protocol; it does nothing without an API server.
type hamiNode struct {
	state  *devicestate.State
	bridge *hami.Plugin

	mu sync.Mutex // guards what follows
	// round is the last one, gpus the shared GPUs as they were last reconciled; nil
	// before that.
	round *publish.Round
	gpus  []quota.GPU
}

func newHAMiNode(o *Options, state *devicestate.State, before *publish.Round) *hamiNode {
	h := &hamiNode{state: state, round: before}
	if o.API.Online() {
		h.bridge = hami.New(hami.Options{Node: o.NodeName, Watched: o.API, API: o.API, Log: o.Log})
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

// change changes the state and passes it to the bridge.
func (h *hamiNode) change(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
	if h.bridge != nil {
		h.bridge.Set(h.stateLocked())
	}
}

// setGPUs sets the free parts of the shared GPUs.
func (h *hamiNode) setGPUs(gpus []quota.GPU) { h.change(func() { h.gpus = gpus }) }

// update takes a round, and passes on how the allocations of HAMi's pods ended; each is
// reported once.
func (h *hamiNode) update(r *publish.Round) {
	if h.bridge != nil && r.Inventory.Config.SGPU.HAMi.Enabled {
		for _, b := range h.state.View().Allocations() {
			if b.By == allocation.ByHAMi {
				h.bridge.Bound(types.NamespacedName{Namespace: b.Namespace, Name: b.Pod}, types.UID(b.UID), true)
			}
		}
		for _, rejected := range h.state.Rejections() {
			pod := rejected.Pod
			h.bridge.Bound(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, types.UID(pod.UID), false)
		}
	}
	h.change(func() { h.round = r })
}

// stateLocked builds the state that the bridge publishes.
func (h *hamiNode) stateLocked() hami.State {
	c, m := h.round.Inventory.Config, h.round.Inventory.Machine
	list := h.round.Served[c.Resources.SGPU].Status
	state := hami.State{
		Enabled: c.SGPU.HAMi.Enabled, Resource: c.Resources.SGPU, Open: list.Registered && list.Streams > 0,
	}
	if h.gpus == nil {
		return state
	}
	other := make(map[string]hami.Taken)
	if state.Enabled {
		for _, g := range h.state.View().GPUsWithout(allocation.ByHAMi) {
			load := quota.Load{Consumers: g.Consumers, VCore: g.VCore, MemoryMiB: g.UsedMiB}
			other[g.UUID] = hami.Taken{Load: load, Exclusive: g.Exclusive}
		}
	}
	for _, shared := range h.gpus {
		g := hami.GPU{GPU: shared, Other: other[shared.UUID]}
		if at := slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == shared.UUID }); at >= 0 {
			g.BDF, g.Model = m.GPUs[at].PCI, m.GPUs[at].Product
		}
		state.GPUs = append(state.GPUs, g)
	}
	for i := range m.GPUs {
		state.Local = append(state.Local, m.GPUs[i].UUID)
	}
	return state
}
