package agent

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/gpumode"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/discovery/capacity"
)

// The causes that are not about the health of a device.
const (
	// NothingToOffer is a resource that has no device at all.
	NothingToOffer health.Cause = wellknown.EventNothingToOffer
	// Unsuitable is a GPU that the configuration has no use for, such as one
	// with MIG where mig.strategy is none.
	Unsuitable health.Cause = "Unsuitable"
	// Draining is a GPU that a container has under another name, which it had
	// in an earlier configuration.
	Draining health.Cause = "Draining"
	// ServedByOthers is a resource that is left to another device plugin.
	ServedByOthers health.Cause = "ServedByOthers"
	// Cordoned is a GPU that an operator took out.
	Cordoned health.Cause = "Cordoned"
	// Released is a GPU whose driver an operator needs.
	Released health.Cause = "Released"
	// StateUnwritable is a device that is not handed out because that could not be
	// recorded.
	StateUnwritable health.Cause = "StateUnwritable"
)

// shortages are the devices that no pod can get, and why: unhealthy ones,
// resources without any device, and those that another plugin serves. A node that
// has no GPU is not short of a resource without any device, and one that has no
// HCA is not short of HCAs: one configuration is for nodes of every kind.
func (a *resources) shortages(
	inv *inventory.Inventory, snapshot *health.Snapshot, gpus []gpumode.GPU,
) []health.Shortage {
	m, c := inv.Machine, inv.Config
	var all []health.Shortage
	running, wanted := a.all(), a.wantedNow()
	cpuOnly, withoutHCAs := capacity.CPUOnly(m, a.Vendors), capacity.WithoutHCAs(c.WithRoles(m))
	if reason := a.withoutCDI(); reason != "" && !cpuOnly {
		all = append(all, health.Shortage{Resource: c.Resources.SGPU, Cause: NothingToOffer, Message: reason})
	}
	for _, r := range capacity.Of(m, c, a.Vendors) {
		if !slices.Contains(wanted, r.Name) {
			continue // It is another daemon's.
		}
		var states map[string]health.State
		s := running[r.Name]
		switch at := rdmaAt(c, r.Name); {
		case at >= 0:
			states = hcaStates(inv, &c.RDMA.Resources[at], s, snapshot)
		case s != nil && s.gpu != nil:
			states = gpuStates(inv, r.Name, s, snapshot, gpus)
		case s != nil && r.Name == c.Resources.SGPU:
			states = shareStates(inv, snapshot, gpus)
		}
		markUnavailable(states, inv.Unavailable)
		ill := health.Shortages(r.Name, states)
		need := !cpuOnly && !allShared(m, c, r.Name) && (rdmaAt(c, r.Name) < 0 || !withoutHCAs)
		if len(ill) == 0 && r.Count == 0 && need {
			ill = []health.Shortage{{Resource: r.Name, Cause: NothingToOffer, Message: r.Reason}}
		}
		if s != nil {
			if status := s.plugin.Status(); !status.Registered && status.Owner != "" {
				ill = append(ill, health.Shortage{
					Resource: r.Name, Cause: ServedByOthers, Message: "it is left to " + status.Owner,
				})
			}
		}
		all = append(all, ill...)
	}
	return all
}

// markUnavailable gives devices that are unavailable for a reason of the plugin's own
// that cause.
func markUnavailable(states map[string]health.State, why string) {
	for name, state := range states {
		if why != "" && state.Reason == why {
			states[name] = health.State{Cause: StateUnwritable, Reason: why}
		}
	}
}

// allShared reports whether a resource is 0 because the configuration hands all
// its GPUs out in shares, which is no shortage.
func allShared(m *machine.Machine, c *config.NodeConfig, resource string) bool {
	if resource != c.Resources.GPU || len(m.GPUs) == 0 {
		return false
	}
	for i := range m.GPUs {
		g := &m.GPUs[i]
		if c.GPUResource(g) == resource && inventory.Wanted(c, g) != config.ModeSGPU {
			return false
		}
	}
	return true
}

// gpuStates are the states of a resource's GPUs, by the names that users see.
func gpuStates(
	inv *inventory.Inventory, resource string, s *served, snapshot *health.Snapshot, gpus []gpumode.GPU,
) map[string]health.State {
	m := inv.Machine
	states := map[string]health.State{}
	faults := s.gpu.Faults()
	for _, d := range s.gpu.Devices() {
		name, state := d.ID, health.State{Healthy: true}
		uuid := cmp.Or(inv.ParentOf(d.ID), d.ID)
		if at := slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == d.ID }); at >= 0 {
			name = fmt.Sprintf("GPU %d", m.GPUs[at].Index)
		}
		if !d.Healthy {
			var moves bool
			if state, moves = unavailable(snapshot, gpus, uuid, faults[d.ID]); moves {
				continue
			}
			if state.Cause == Unsuitable && state.Reason == inv.Elsewhere[resource][d.ID] {
				state.Cause = Draining
			}
		}
		states[name] = state
		s.past.see(d.ID, name)
	}
	s.past.add(states, snapshot.GPUs, func(id string) bool {
		return slices.ContainsFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == id })
	})
	return states
}

// shareStates are the states of shared GPUs.
func shareStates(inv *inventory.Inventory, snapshot *health.Snapshot, gpus []gpumode.GPU) map[string]health.State {
	states := map[string]health.State{}
	for _, g := range inv.Shared {
		state := health.State{Healthy: true}
		if g.Unhealthy != "" {
			var moves bool
			if state, moves = unavailable(snapshot, gpus, g.UUID, g.Unhealthy); moves {
				continue
			}
		}
		states[fmt.Sprintf("GPU%d", g.Index)] = state
	}
	return states
}

// hcaStates are those of a resource's HCAs, by RDMA name.
func hcaStates(
	inv *inventory.Inventory, r *config.RDMAResource, s *served, snapshot *health.Snapshot,
) map[string]health.State {
	m := inv.Machine
	states := map[string]health.State{}
	for _, member := range allocate.Members(inv, inv.Config.WithRoles(m), r) {
		name := m.HCAs[member.Index].Name
		state := snapshot.HCA(member.ID)
		switch {
		case member.Unhealthy == "":
			state = health.State{Healthy: true} // Also a virtual function whose port no pod has set up.
		case state.Healthy:
			state = health.State{Cause: Unsuitable, Reason: member.Unhealthy}
		}
		states[name] = state
		if s != nil {
			s.past.see(member.ID, name)
		}
	}
	if s != nil {
		ids := m.HCAIDs()
		s.past.add(states, snapshot.HCAs, func(id string) bool { return slices.Contains(ids, id) })
	}
	return states
}

// past is the devices that a resource has had, with the names that people use: one
// that fell off the bus is in no machine any more, and is missing all the same.
type past struct {
	mu    sync.Mutex
	names map[string]string // by ID; guarded by mu
}

func (p *past) see(id, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.names == nil {
		p.names = map[string]string{}
	}
	p.names[id] = name
}

// add puts devices that are gone into states. Those that health has forgotten
// went on purpose.
func (p *past) add(states, known map[string]health.State, present func(id string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, name := range p.names {
		if present(id) {
			continue
		}
		if state, ok := known[id]; ok {
			states[name] = state
		} else {
			delete(p.names, id)
		}
	}
}

// unavailable is the state of a GPU that no new pod gets for a reason: it is
// unhealthy, an operator took it out, or the configuration has no use for it. One
// that moves to another resource is shown by another condition.
func unavailable(
	snapshot *health.Snapshot, gpus []gpumode.GPU, uuid, reason string,
) (state health.State, moves bool) {
	if state = snapshot.GPU(uuid); !state.Healthy {
		return state, false
	}
	at := slices.IndexFunc(gpus, func(g gpumode.GPU) bool { return g.UUID == uuid })
	switch {
	case reason == release.Reason:
		return health.State{Cause: Released, Reason: reason}, false
	case at >= 0 && gpus[at].Cordoned:
		return health.State{Cause: Cordoned, Reason: gpumode.Cordoned}, false
	case at >= 0 && gpus[at].Until != "":
		return state, true
	}
	return health.State{Cause: Unsuitable, Reason: reason}, false
}
