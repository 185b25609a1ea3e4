package agent

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/binder"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// newBridge makes the node's side of HAMi's protocol; nil without an API
// server.
func (a *Agent) newBridge() *hami.Plugin {
	if !a.API.Online() {
		return nil
	}
	return hami.New(hami.Options{
		Node: a.NodeName, Watched: a.API, Reader: a.API, Writer: a.API, State: a.hamiState, Log: a.Log,
		IsLocal: func(uuid string) bool { return gpuAt(a.machine(), uuid) != nil },
	})
}

// runBridge serves HAMi until ctx ends.
func (a *Agent) runBridge(ctx context.Context) error {
	if a.bridge == nil {
		return nil
	}
	return a.bridge.Run(ctx)
}

// wakeBridge tells that what HAMi should know may differ.
func (a *Agent) wakeBridge() {
	if a.bridge != nil {
		a.bridge.Notify()
	}
}

// tellHAMi tells the pods of HAMi how their binding ended, and HAMi what the
// cards are now. Who was told is not told again.
func (a *Agent) tellHAMi() {
	if a.bridge == nil || !a.config().SGPU.HAMi.Enabled {
		a.wakeBridge()
		return
	}
	tell := func(namespace, name, uid string, ok bool) {
		a.bridge.Bound(types.NamespacedName{Namespace: namespace, Name: name}, types.UID(uid), ok)
	}
	for _, b := range a.binder.Bindings() {
		if b.By == allocation.ByHAMi && !b.Unrecorded {
			tell(b.Namespace, b.Pod, b.UID, true)
		}
	}
	for _, r := range a.binder.Refused() {
		tell(r.Pod.Namespace, r.Pod.Name, r.Pod.UID, false)
	}
	a.wakeBridge()
}

// hamiScheduler is HAMi as the binder knows it.
type hamiScheduler struct{ agent *Agent }

var _ binder.Scheduler = hamiScheduler{}

// Scheduled implements [binder.Scheduler].
func (h hamiScheduler) Scheduled(
	pod *corev1.Pod, container string, want *quota.Request,
) (shares []allocation.Share, by string, err error) {
	c := h.agent.config()
	if !c.SGPU.HAMi.Enabled {
		return nil, "", nil
	}
	m := h.agent.machine()
	shares, err = hami.Choice(pod, container, want, hami.Rules{
		Node: h.agent.NodeName, SchedulerName: c.SGPU.HAMi.SchedulerName,
		Card: func(uuid string) (memoryMiB int64, known bool) {
			g := gpuAt(m, uuid)
			if g == nil {
				return 0, false
			}
			return g.MemoryMiB, true
		},
	})
	if refusal, ok := errors.AsType[*hami.RejectedError](err); ok && refusal.Reason == hami.Absent {
		return nil, "", nil
	}
	return shares, allocation.ByHAMi, err
}

func (a *Agent) hamiState() hami.State {
	c, m := a.config(), a.machine()
	var cards []quota.GPU
	if last := a.tenancy.cards.Load(); last != nil {
		cards = *last
	}
	state := hami.State{Enabled: c.SGPU.HAMi.Enabled, Resource: c.Resources.SGPU}
	if s := a.all()[state.Resource]; s != nil {
		status := s.plugin.Status()
		state.Open = status.Registered && status.Streams > 0
	}
	for i := range cards {
		card := hami.GPU{GPU: cards[i]}
		if g := gpuAt(m, card.UUID); g != nil {
			card.BDF, card.Model = g.PCI, g.Product
		}
		state.GPUs = append(state.GPUs, card)
	}
	return state
}

func gpuAt(m *machine.Machine, uuid string) *machine.GPU {
	if m == nil {
		return nil
	}
	if i := slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == uuid }); i >= 0 {
		return &m.GPUs[i]
	}
	return nil
}
