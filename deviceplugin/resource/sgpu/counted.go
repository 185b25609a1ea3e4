package sgpu

import (
	"context"
	"fmt"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Unit is what a [Counted] resource counts; it begins its device IDs.
type Unit string

// Cores are percent of compute, Memory is in GiB.
const (
	Cores  Unit = "vcore"
	Memory Unit = "vmemory"
)

// Of is how many devices a GPU is worth: whole ones, since a request is for one
// GPU.
func (u Unit) Of(g *quota.GPU) int {
	if u == Cores {
		return quota.Whole
	}
	return int(g.Room() / config.GiB.InMiB())
}

// Counted is a resource that is only counted, as a [server.Resource]: devices
// without a GPU, such as vcore-0017, as many as all healthy shared GPUs are worth
// together. They do not state what a container has of which GPU; they are a
// coarse gate for schedulers that count resources only. Its calls answer
// nothing, and its plugin skips GetPreferredAllocation and PreStartContainer.
type Counted struct {
	*server.List
	unit Unit
}

var _ server.Resource = (*Counted)(nil)

// NewCounted makes the resource and takes its first snapshot.
func NewCounted(unit Unit, inv *inventory.Inventory) *Counted {
	r := &Counted{List: server.NewList(), unit: unit}
	r.Refresh(inv)
	return r
}

// Refresh counts again.
func (r *Counted) Refresh(inv *inventory.Inventory) {
	n := 0
	for i := range inv.Shared {
		if inv.Shared[i].Unhealthy == "" {
			n += r.unit.Of(&inv.Shared[i])
		}
	}
	devices := make([]server.Device, n)
	for i := range devices {
		devices[i] = server.Device{ID: fmt.Sprintf("%s-%04d", r.unit, i), Healthy: true}
	}
	r.Offer(devices)
}

// Prefer leaves the choice to the kubelet: all are the same.
func (*Counted) Prefer([]string, []string, int) ([]string, error) { return nil, nil }

// Allocate gives a container nothing.
func (*Counted) Allocate(context.Context, []string) (*v1beta1.ContainerAllocateResponse, error) {
	return &v1beta1.ContainerAllocateResponse{}, nil
}

// PreStart does nothing.
func (*Counted) PreStart(context.Context, []string) error { return nil }
