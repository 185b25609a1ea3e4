// Package capacity says which resources a node can offer, how many of each,
// and why there are not more: a pure function of the machine and the node's
// configuration.
//
// Every zero has a reason that a person can act on. The package advertises
// nothing; see deviceplugin.
package capacity

import (
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
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
	// Reason says why Count is 0, or why some devices cannot be handed out.
	// Empty if all is well.
	Reason string
}

// Of lists the resources of a machine: GPUs first, then HCAs in the order of
// the configuration. c is complete; see [config.NodeConfig.Complete].
func Of(m *machine.Machine, c *config.NodeConfig) []Resource {
	m = c.WithRoles(m)
	resources := gpus(m, c)
	if c.Mode == config.ModeSGPU {
		resources = append(resources, shares(m, c)...)
	}
	for i := range c.RDMA.Resources {
		resources = append(resources, hcas(m, &c.RDMA.Resources[i]))
	}
	return resources
}
