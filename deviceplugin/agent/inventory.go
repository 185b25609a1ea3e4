package agent

import (
	"cmp"
	"maps"
	"slices"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/resource/gpu"
)

// latest is the machine that the health monitor has judged, so that no part is
// ahead of another; before its first scan the one that was read at start.
func (a *Agent) latest() *machine.Machine {
	if m := a.monitor.Snapshot().Machine; m != nil {
		return m
	}
	return a.Source.Machine()
}

// inventory is the node in this round.
func (a *Agent) inventory(m *machine.Machine, c *config.NodeConfig) *inventory.Inventory {
	snapshot := a.monitor.Snapshot()
	gpus := make(map[string]inventory.GPU, len(m.GPUs))
	for _, now := range a.modes.GPUs() {
		state := inventory.GPU{Mode: now.Offered, Unavailable: now.Unavailable, Draining: now.Draining}
		if found, known := snapshot.GPUs[now.UUID]; known && !found.Healthy {
			state.Unhealthy = cmp.Or(found.Reason, "unhealthy")
		}
		if state.Mode == config.ModeSGPU {
			if _, err := a.driver.CardEdits(now.UUID); err != nil {
				state.CDIError = err.Error()
			}
		}
		gpus[now.UUID] = state
	}
	inv := inventory.New(m, c, gpus, unhealthyHCAs(snapshot))
	inv.Elsewhere = a.elsewhere(inv)
	return inv
}

// unhealthyHCAs are the reasons by name.
func unhealthyHCAs(s *health.Snapshot) map[string]string {
	reasons := map[string]string{}
	if s.Machine == nil {
		return reasons
	}
	for i, id := range s.Machine.HCAIDs() {
		if reason := s.HCA(id).Reason; reason != "" {
			reasons[s.Machine.HCAs[i].Name] = reason
		}
	}
	return reasons
}

// elsewhere names who has a GPU under another resource: a container, or the
// kubelet, which has been offered it under that name and may be about to give
// it to a pod. That list drops it once no pod has it, after a minute.
func (a *Agent) elsewhere(inv *inventory.Inventory) map[string]map[string]string {
	served := a.all()
	recorded, _, _ := a.binder.Recorded()
	all := map[string]map[string]string{}
	for _, name := range slices.Concat(gpu.Names(inv), recorded, slices.Collect(maps.Keys(served))) {
		if s := served[name]; s != nil && s.gpu == nil {
			continue
		}
		all[name] = map[string]string{}
		for id := range inv.GPUs {
			if holder := a.binder.Elsewhere(name, id); holder != "" {
				all[name][id] = holder
			}
		}
		for other, t := range served {
			if other == name || t.gpu == nil {
				continue
			}
			for _, d := range t.plugin.List() {
				if all[name][d.ID] == "" {
					all[name][d.ID] = "the kubelet has it as " + other
				}
			}
		}
	}
	return all
}
