// Package gpu hands out GPUs: full GPUs and MIG devices, by UUID.
//
// It decides which GPUs a resource is made of, which of them go together, and
// what a container needs to use them: the CDI devices of the driver's spec, or
// the environment that older runtimes read. A device ID is a UUID and means
// that very GPU; what else a container gets beside its GPUs is prepared later.
// GPUs that are handed out in shares are not its own, and no vendor is known
// here.
//
// Its calls read an immutable snapshot, which [Resource.Refresh] makes from an
// inventory: none of them waits for hardware, and none opens a GPU.
package gpu

import (
	"cmp"
	"maps"
	"slices"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/discovery/capacity"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
)

// Names lists the resources of the node's GPUs: full GPUs first, whether there are
// any or not, then one for every MIG profile under strategy mixed, and those of other makers.
func Names(inv *inventory.Inventory) []string {
	profiles := map[string]bool{}
	for i := range inv.Machine.GPUs {
		for _, d := range devicesOf(inv, i) {
			if d.resource != inv.Config.Resources.GPU {
				profiles[d.resource] = true
			}
		}
	}
	return append([]string{inv.Config.Resources.GPU}, slices.Sorted(maps.Keys(profiles))...)
}

// device is a GPU or a MIG device that a container can have.
type device struct {
	id       string
	resource string
	// gpu is the place in the machine's GPUs of the GPU, or of the one that it
	// was cut from; instance distinguishes the two.
	gpu      int
	instance bool
	vendor   *devgpu.Vendor
	// unhealthy is why it cannot be handed out, as far as the scan and the modes
	// know.
	unhealthy string
}

// devicesOf lists what the GPU at an index is handed out as: itself, its MIG
// devices, or nothing if it is shared. Where no GPU is changing its mode it
// agrees with discovery/capacity.
func devicesOf(inv *inventory.Inventory, index int) []device {
	g, c := &inv.Machine.GPUs[index], inv.Config
	unavailable := inv.GPUs[g.UUID].Unavailable
	switch {
	case inv.GPUs[g.UUID].Mode != config.ModeNative:
		return nil
	case len(g.MIG.Devices) == 0 || c.InstanceResource(g, "") == "":
		reason := cmp.Or(capacity.Unallocatable(g, c), unavailable)
		return []device{{id: g.UUID, resource: c.GPUResource(g), gpu: index, unhealthy: reason}}
	}
	var devices []device
	reason := cmp.Or(c.Health.Fault(g.Health), unavailable)
	for i := range g.MIG.Devices {
		d := &g.MIG.Devices[i]
		resource := c.InstanceResource(g, d.Profile)
		devices = append(devices, device{id: d.UUID, resource: resource, gpu: index, instance: true, unhealthy: reason})
	}
	return devices
}
