// Package inventory is what the device plugin knows of its node at one moment,
// as one immutable value: the machine, the configuration, the health of each
// device, and in which resource each GPU is.
//
// The agent builds one in every round of its loop and hands it to the
// resources and to the device state. Nothing else reads the machine, the
// configuration or the health monitor. It never calls anything.
package inventory

import (
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Inventory is the node at one moment. It is never changed after it was built.
type Inventory struct {
	Machine *machine.Machine
	Config  *config.NodeConfig
	// GPUs are by UUID, whole GPUs and MIG devices.
	GPUs map[string]GPU
	// HCAs are the reasons why HCAs are unhealthy, by name (mlx5_0); a healthy
	// HCA is not in it.
	HCAs map[string]string
	// Shared are the GPUs that are handed out in shares, in the machine's
	// order, with nothing taken.
	Shared []quota.GPU
}

// GPU is how one GPU or MIG device is handed out.
type GPU struct {
	// Mode is the resource that it is in: whole (native) or in shares (sgpu).
	// Empty while it is not known.
	Mode config.Mode
	// Unhealthy is why the device is unhealthy; empty if it is healthy.
	Unhealthy string
	// Unavailable is why a new pod cannot get it although it is healthy: it is
	// cordoned, or draining before a change of mode. Empty if a pod can.
	Unavailable string
}
