package server

import (
	"context"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Device is one unit of a resource as the kubelet counts it.
type Device struct {
	// ID is unique within the resource and means the same device over
	// restarts of everything.
	ID      string
	Healthy bool
	// NUMA are the nodes that the device is near to; none means no preference.
	NUMA []int64
}

// Resource is what a Plugin serves. Its calls never wait for hardware.
type Resource interface {
	// Devices is an immutable snapshot, sorted by ID. It must be complete
	// before the Plugin runs: an ID that is missing from the first list, and
	// that a pod holds, is shown as unhealthy.
	Devices() []Device
	// Changed receives when Devices may differ. Its capacity is one; the
	// Plugin is its only reader.
	Changed() <-chan struct{}
	// Prefer chooses size IDs of available, all of must among them. An error,
	// or fewer IDs, leaves the choice to the kubelet and never fails a pod.
	Prefer(available, must []string, size int) ([]string, error)
	Allocator
}

// Allocator hands devices to containers. The ids of a call are the kubelet's,
// in no order.
type Allocator interface {
	// Allocate answers for one container. Its error fails the pod for good
	// (UnexpectedAdmissionError).
	Allocate(ctx context.Context, ids []string) (*v1beta1.ContainerAllocateResponse, error)
	// PreStart runs before every start of a container that holds ids, within
	// 30 s. Its error is shown on the pod, and the kubelet tries again.
	PreStart(ctx context.Context, ids []string) error
}
