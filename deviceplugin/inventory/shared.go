package inventory

import (
	"cmp"
	"slices"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// shared returns the shared GPUs. What the scan has against
// a GPU comes first, then its mode, then its health, then its CDI spec.
func (inv *Inventory) shared() []quota.GPU {
	zones := zonesOf(inv.Machine)
	var all []quota.GPU
	for i := range inv.Machine.GPUs {
		g := &inv.Machine.GPUs[i]
		state := inv.GPUs[g.UUID]
		twice := slices.ContainsFunc(all, func(s quota.GPU) bool { return s.UUID == g.UUID }) // Its UUID is ambiguous.
		if state.Mode != config.ModeSGPU || g.UUID == "" || twice {
			continue
		}
		scanned := scannedFault(g, &inv.Config.Health)
		shared := quota.GPU{
			UUID: g.UUID, Index: g.Index, MemoryMiB: g.MemoryMiB, Slots: inv.Config.SGPU.SlotsPerGPU, NUMA: -1, Zone: zones[i],
			Unhealthy: cmp.Or(scanned, state.Unavailable), Draining: scanned == "" && state.Draining,
		}
		if room := inv.Config.SGPU.RoomMiB(g.MemoryMiB); room > g.MemoryMiB {
			shared.RoomMiB = room
		}
		if f := inv.Machine.Function(g.PCI); f != nil && f.NUMA != nil {
			shared.NUMA = *f.NUMA
		}
		if state.Unhealthy != "" && (shared.Unhealthy == "" || shared.Draining) {
			shared.Unhealthy, shared.Draining = state.Unhealthy, false
		}
		shared.Unhealthy = cmp.Or(shared.Unhealthy, state.CDIError)
		all = append(all, shared)
	}
	slices.SortStableFunc(all, func(a, b quota.GPU) int { return cmp.Compare(a.Index, b.Index) })
	return all
}

// scannedFault returns why a GPU cannot be shared according to the scan.
func scannedFault(g *machine.GPU, h *config.Health) string {
	switch reason := h.Fault(g.Health); {
	case reason != "" || !g.MIG.Enabled:
		return reason
	case g.MIG.Mode != "":
		return "its mode is " + g.MIG.Mode
	}
	return "MIG is on"
}

// zonesOf numbers the GPUs that NVLinks join, from 1, by place in the machine;
// 0 is joined to none.
func zonesOf(m *machine.Machine) []int {
	zones := make([]int, len(m.GPUs))
	last := 0
	var join func(i int)
	join = func(i int) {
		zones[i] = last
		for j := range m.GPUs {
			if zones[j] == 0 && joined(&m.GPUs[i], &m.GPUs[j]) {
				join(j)
			}
		}
	}
	for i := range m.GPUs {
		alone := !slices.ContainsFunc(m.GPUs, func(g machine.GPU) bool {
			return g.PCI != m.GPUs[i].PCI && joined(&m.GPUs[i], &g)
		})
		if zones[i] == 0 && !alone {
			last++
			join(i)
		}
	}
	return zones
}

// joined reports whether NVLink joins two GPUs, directly or through switches.
func joined(a, b *machine.GPU) bool {
	to := func(g *machine.GPU, peer string) bool {
		return slices.ContainsFunc(g.NVLinks, func(l machine.NVLink) bool { return l.Peer == peer && l.Links > 0 })
	}
	return to(a, b.PCI) || to(b, a.PCI) || to(a, machine.PeerNVSwitch) && to(b, machine.PeerNVSwitch)
}
