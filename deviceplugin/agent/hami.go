package agent

import (
	"context"
	"slices"

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
}

func newHAMiNode(o *Options, state *devicestate.State) *hamiNode {
	h := &hamiNode{state: state}
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

// update takes a round and the shared GPUs, nil while they are not known, and passes on how the allocations of HAMi's
// pods ended; each is reported once.
func (h *hamiNode) update(r *publish.Round, gpus []quota.GPU) {
	if h.bridge == nil {
		return
	}
	if r.Inventory.Config.SGPU.HAMi.Enabled {
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
	h.bridge.Set(h.offer(r, gpus))
}

// offer returns the state that the bridge publishes.
func (h *hamiNode) offer(r *publish.Round, gpus []quota.GPU) hami.State {
	c, m := r.Inventory.Config, r.Inventory.Machine
	list := r.Served[c.Resources.SGPU].Status
	state := hami.State{
		Enabled: c.SGPU.HAMi.Enabled, Resource: c.Resources.SGPU, Open: list.Registered && list.Streams > 0,
	}
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
	for _, shared := range gpus {
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
