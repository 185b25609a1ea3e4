// Package inventory is the state of the node at one moment,
// as one immutable value: the machine, the configuration, the health of each
// device, and in which resource each GPU is.
//
// The agent builds one in every round of its loop and hands it to the
// resources and to the device state. Nothing else reads the machine, the
// configuration or the health monitor. It never calls anything.
package inventory

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Inventory is the node at one moment. It is never changed after it was built.
type Inventory struct {
	Machine *machine.Machine
	Config  *config.NodeConfig
	// GPUs has full GPUs and MIG devices by UUID.
	GPUs map[string]GPU
	// HCAs are the reasons why HCAs are unhealthy, by name (mlx5_0); a healthy
	// HCA is not in it. Nil means that only the scan is known.
	HCAs map[string]string
	// Shared are the shared GPUs, by index, with nothing taken.
	Shared []quota.GPU
	// Elsewhere names who has a GPU under another resource or cut another way, by resource and
	// device ID. Such a GPU is listed and not allocated.
	Elsewhere map[string]map[string]string
	// Unavailable explains why no device can be allocated at all; see AllUnavailable.
	Unavailable string
	// Channels holds the IMEX channels that pods may request; nil if all containers with GPUs get
	// the channels of the driver's CDI spec.
	Channels *Channels
}

// Channels are the IMEX channels that a container gets if its pod asks for them.
type Channels struct {
	// Allowed are the channels that a pod may ask for, as [github.com/heddle-dev/heddle/discovery/gpu.Features]
	// has them.
	Allowed string
	// Nodes holds the device nodes of the channels that exist on the node, by number.
	Nodes map[int]*specs.DeviceNode
}

// GPU describes how one GPU or MIG device is allocated.
type GPU struct {
	// Mode is where it is allocated: as an exclusive resource (native), in shares (sgpu) or by claims.
	// Empty while it is in none: the mode is not known, or about to change.
	Mode config.Mode
	// Unhealthy explains why the device is unhealthy; empty if it is healthy.
	Unhealthy string
	// Unavailable explains why a new pod cannot get the device although it is healthy: it is
	// cordoned, or draining before a change of mode. Else it is empty.
	Unavailable string
	// Draining: it is unavailable only because its mode is to change. A
	// container that holds a share of it may still start.
	Draining bool
	// CDIEdits holds the device nodes that a container with a share needs, by the driver's CDI
	// spec; CDIError explains why the spec does not describe the GPU. For an exclusive GPU it is
	// empty while a spec exists: the runtime names a missing device.
	CDIEdits *specs.ContainerEdits
	CDIError string
}

// New builds an inventory of the GPUs that the configuration names. A MIG device that
// is not among gpus is allocated as the GPU that it is cut from.
func New(m *machine.Machine, c *config.NodeConfig, gpus map[string]GPU, hcas map[string]string) *Inventory {
	m = c.Serving(m)
	inv := &Inventory{Machine: m, Config: c, GPUs: map[string]GPU{}, HCAs: hcas}
	maps.Copy(inv.GPUs, gpus)
	for i := range m.GPUs {
		parent := gpus[m.GPUs[i].UUID]
		for j := range m.GPUs[i].MIG.Devices {
			uuid := m.GPUs[i].MIG.Devices[j].UUID
			if _, ok := inv.GPUs[uuid]; !ok {
				inv.GPUs[uuid] = parent
			}
		}
	}
	inv.Shared = inv.shared()
	return inv
}

// AllUnavailable returns the inventory of the same node when no device can be allocated:
// each is unhealthy, for that reason if it has no other. Containers that run
// must not be decided by it.
func (inv *Inventory) AllUnavailable(reason string) *Inventory {
	gpus, hcas := make(map[string]GPU, len(inv.GPUs)), make(map[string]string, len(inv.Machine.HCAs))
	for uuid, gpu := range inv.GPUs {
		gpu.Unhealthy = cmp.Or(gpu.Unhealthy, reason)
		gpus[uuid] = gpu
	}
	for i := range inv.Machine.HCAs {
		name := inv.Machine.HCAs[i].Name
		hcas[name] = cmp.Or(inv.HCAs[name], reason)
	}
	unavailable := New(inv.Machine, inv.Config, gpus, hcas)
	unavailable.Elsewhere, unavailable.Unavailable, unavailable.Channels = inv.Elsewhere, reason, inv.Channels
	return unavailable
}

// Wanted returns the mode that the configuration gives a GPU. A GPU with MIG is
// never shared.
func Wanted(c *config.NodeConfig, g *machine.GPU) config.Mode {
	switch {
	case c.Shares(g):
		return config.ModeSGPU
	case c.Claimable(g):
		return config.ModeClaims
	}
	return config.ModeNative
}

// HCAUnhealthy returns why an HCA is unhealthy, or an empty string.
func (inv *Inventory) HCAUnhealthy(h *machine.HCA) string { return inv.HCAs[h.Name] }

// Modes returns the partition modes of the GPUs that some IDs are partitions of, by UUID;
// nil without any.
func (inv *Inventory) Modes(ids []string) map[string]string {
	var modes map[string]string
	for i := range inv.Machine.GPUs {
		g := &inv.Machine.GPUs[i]
		if g.MIG.Mode == "" || !slices.ContainsFunc(ids, func(id string) bool { return machine.PartitionOf(id) == g.UUID }) {
			continue
		}
		if modes == nil {
			modes = map[string]string{}
		}
		modes[g.UUID] = g.MIG.Mode
	}
	return modes
}

// Recut reports whether a GPU had another partition mode once; false if that is not known.
func (inv *Inventory) Recut(uuid, mode string) bool {
	now := inv.Modes([]string{machine.Partition(uuid, 0)})[uuid]
	return mode != "" && now != "" && now != mode
}

// shared returns the shared GPUs. What the scan has against
// a GPU comes first, then its mode, then its health, then its CDI spec.
func (inv *Inventory) shared() []quota.GPU {
	zones := Zones(inv.Machine)
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
			UUID: g.UUID, Index: g.Index, MemoryMiB: g.MemoryMiB, Slots: inv.Config.SGPU.Slots(g), NUMA: -1, Zone: zones[i],
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

// Zones numbers the GPUs that NVLinks join, from 1, by place in the machine;
// 0 is joined to none.
func Zones(m *machine.Machine) []int {
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

// Held is a device of a resource that a pod holds, or that the kubelet may give to one.
type Held struct {
	// ID is a UUID, or UUID::number for a share.
	Resource, ID string
	// Pod is its namespace and name, or "pod UID"; empty for a device that no pod holds.
	Pod string
}

// ReplicaSeparator is between a device and the number of a replica in device IDs: a
// device that pods share is offered as several IDs, each with one holder. PCI
// addresses and GUIDs have single colons.
const ReplicaSeparator = "::"

// ReplicaID returns the device ID of one replica of a device, such as GPU-…::3.
func ReplicaID(device string, number int) string {
	return device + ReplicaSeparator + strconv.Itoa(number)
}

// IsReplica reports whether an ID is a replica's, and not a device's own name.
func IsReplica(id string) bool { return strings.Contains(id, ReplicaSeparator) }

// DeviceOf returns the device that an ID names.
func DeviceOf(id string) string {
	device, _, _ := strings.Cut(id, ReplicaSeparator)
	return device
}

// DevicesOf returns the devices that IDs name, sorted and without repeats.
func DevicesOf(ids []string) []string {
	devices := make([]string, len(ids))
	for i, id := range ids {
		devices[i] = DeviceOf(id)
	}
	slices.Sort(devices)
	return slices.Compact(devices)
}
