package cdi

import (
	"encoding/json"
	"fmt"

	"github.com/heddle-dev/heddle/api/allocation"
)

// DevicesFile is where a container finds what it was given, as JSON; see
// [Devices].
const DevicesFile = "/etc/heddle/devices.json"

// Devices is the content of [DevicesFile].
type Devices struct {
	Namespace string      `json:"namespace"`
	Pod       string      `json:"pod"`
	Container string      `json:"container"`
	GPUs      []DeviceGPU `json:"gpus"`
	HCAs      []DeviceHCA `json:"hcas"`
}

// DeviceGPU is a GPU of a container.
type DeviceGPU struct {
	// UUID is the device's; for an instance (MIG) the instance's.
	UUID  string `json:"uuid"`
	Index int    `json:"index"`
	PCI   string `json:"pci"`
	// HCA is the container's nearest HCA, and Class the path to it; empty
	// without HCAs.
	HCA   string `json:"hca,omitempty"`
	Class string `json:"class,omitempty"`
	// Share is the container's part of the GPU, and Policy its QoS policy; nil and empty for an
	// exclusive GPU.
	Share  *allocation.Share `json:"share,omitempty"`
	Policy string            `json:"policy,omitempty"`
}

// DeviceHCA is an HCA of a container.
type DeviceHCA struct {
	// ID is the identity, Name the RDMA name.
	ID   string `json:"id"`
	Name string `json:"name"`
	PCI  string `json:"pci"`
	// Resource is the one that the container asked for.
	Resource string `json:"resource"`
	// Ports are the numbers of the active ports; of an HCA that a CNI plugin brings
	// up in the pod's network, of all.
	Ports     []int    `json:"ports"`
	LinkLayer string   `json:"linkLayer"`
	RateGbps  *float64 `json:"rateGbps"`
	// Rail is as in affinity.Rails; -1 for others.
	Rail int `json:"rail"`
	// GPU is the UUID of the container's nearest GPU, and Class the path to
	// it; empty without GPUs.
	GPU   string `json:"gpu,omitempty"`
	Class string `json:"class,omitempty"`
	// Nodes are the device nodes, as paths.
	Nodes []string `json:"nodes"`
}

// File returns the content of [DevicesFile].
func (d *Devices) File() ([]byte, error) {
	content, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("devices of container %s: %w", d.Container, err)
	}
	return append(content, '\n'), nil
}
