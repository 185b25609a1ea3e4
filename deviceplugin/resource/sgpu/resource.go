// Package sgpu hands out shares of GPUs: slots of shared GPUs (`sgpu`), and what
// a share is counted in, percent of compute (`vcore`) and GiB (`vmemory`).
//
// A slot names a GPU, which only helps readers of the kubelet's PodResources:
// which GPU a container gets, and how much of it, is decided when it starts.
// Percents and GiB name no GPU at all. The package keeps no account of who has
// what, and opens no GPU; its calls read an immutable snapshot, which Refresh
// replaces.
package sgpu

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/replica"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Resource is the replicas of shared GPUs, as a [server.Resource].
type Resource struct {
	*resource.Resource
	now atomic.Pointer[inventory.Inventory]
}

// New makes the resource and takes its first snapshot.
func New(o resource.Options, inv *inventory.Inventory) *Resource {
	r := &Resource{Resource: resource.New(o)}
	r.Refresh(inv)
	return r
}

// Refresh takes a new snapshot. Under a name that the configuration has no more
// there are no slots but those that containers have.
//
// A slot is as healthy as the GPU that it names, or once bound, as the one that it
// stands for; so all slots of an unused GPU go together.
func (r *Resource) Refresh(inv *inventory.Inventory) {
	r.now.Store(inv)
	var shared []quota.GPU
	if inv.Config.Resources.SGPU == r.Name {
		shared = inv.Shared
	}
	healthy := make(map[string]bool, len(shared))
	for i := range shared {
		healthy[shared[i].UUID] = shared[i].Unhealthy == ""
	}
	assigned := r.State.View().Assigned(r.Name)
	var devices []server.Device
	for i := range shared {
		g := &shared[i]
		var numa []int64
		if g.NUMA >= 0 {
			numa = []int64{int64(g.NUMA)}
		}
		for slot := range g.Slots {
			id := replica.ID(g.UUID, slot)
			devices = append(devices, server.Device{ID: id, Healthy: healthy[cmp.Or(assigned[id], g.UUID)], NUMA: numa})
		}
	}
	r.Offer(devices)
}

// Prefer implements [server.Resource].
func (*Resource) Prefer(available, must []string, size int) ([]string, error) {
	return Prefer(available, must, nil, size)
}

// Prefer chooses replicas of as many different GPUs as there are: first of the
// wanted GPUs in their order, then of those with the fewest free replicas, so that
// other GPUs stay whole.
func Prefer(available, must, wanted []string, size int) ([]string, error) {
	rank := func(d *replica.Device) int {
		if at := slices.Index(wanted, d.Name); at >= 0 {
			return at
		}
		return len(wanted)
	}
	return replica.Prefer(available, must, size, func(a, b *replica.Device) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Free, b.Free), cmp.Compare(a.Name, b.Name))
	})
}

// Allocate implements [server.Allocator]: it names what the driver's spec brings
// every container with a GPU.
func (r *Resource) Allocate(_ context.Context, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	if err := resource.CheckMode(r.now.Load(), config.ModeSGPU, replica.Devices(ids)); err != nil {
		return nil, err
	}
	return r.Answer(ids, cdi.CommonDevice)
}
