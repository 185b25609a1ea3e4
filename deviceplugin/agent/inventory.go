package agent

import (
	"cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
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
		// A container with a share may start again while its GPU changes its mode.
		edits, err := a.driver.GPUEdits(now.UUID)
		if state.CDIEdits = edits; err != nil && state.Mode == config.ModeSGPU {
			state.CDIError = err.Error()
		}
		gpus[now.UUID] = state
	}
	inv := inventory.New(m, c, gpus, unhealthyHCAs(snapshot))
	inv.Elsewhere = a.resources.elsewhere(inv)
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
