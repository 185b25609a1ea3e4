// Package capacity counts which resources a node can offer, how many of each,
// and why there are not more: a pure function of the machine and the node's
// configuration.
//
// Every zero has a reason that a person can act on. The package advertises
// nothing; see deviceplugin.
package capacity

import (
	"fmt"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Resource is one resource of a node.
type Resource struct {
	// Name is what pods ask for: nvidia.com/gpu.
	Name string
	// Count is how many of it pods can get, were the node empty.
	Count int64
	// Devices is how many devices it is made of, and Healthy how many of them
	// can be handed out.
	Devices, Healthy int
	// Reason is why Count is 0, or why some devices cannot be handed out.
	// Empty if all can.
	Reason string
}

// Of lists the resources of a machine: GPUs first, then HCAs in the order of
// the configuration. c is complete; see [config.NodeConfig.Complete]. vendors
// are those whose GPUs are recognized on the bus.
func Of(m *machine.Machine, c *config.NodeConfig, vendors gpu.Vendors) []Resource {
	m = c.WithRoles(m)
	resources := gpus(m, c, vendors)
	if c.Mode == config.ModeSGPU {
		resources = append(resources, shares(m, c, vendors)...)
	}
	for i := range c.RDMA.Resources {
		resources = append(resources, hcas(m, &c.RDMA.Resources[i]))
	}
	return resources
}

// maxFaults is how many devices a reason names.
const maxFaults = 4

// tally counts the devices of one resource.
type tally struct {
	name             string
	devices, healthy int
	count            int64
	faults           []string
}

// add counts a device that is worth n, unless it is unhealthy for a reason.
func (t *tally) add(device, reason string, n int64) {
	t.devices++
	if reason != "" {
		t.faults = append(t.faults, device+": "+reason)
		return
	}
	t.healthy++
	t.count += n
}

func (t *tally) resource() Resource {
	return Resource{
		Name: t.name, Count: t.count, Devices: t.devices, Healthy: t.healthy, Reason: several(t.faults),
	}
}

// several joins the first faults and counts the others.
func several(faults []string) string {
	if more := len(faults) - maxFaults; more > 1 {
		return fmt.Sprintf("%s; and %d more", strings.Join(faults[:maxFaults], "; "), more)
	}
	return strings.Join(faults, "; ")
}
