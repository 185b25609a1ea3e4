package resource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Shares is the replicas of shared GPUs, as a [server.Resource].
type Shares struct {
	*base
	now atomic.Pointer[inventory.Inventory]
}

// NewShares makes the resource and takes its first snapshot.
func NewShares(o Options, inv *inventory.Inventory) *Shares {
	r := &Shares{base: newBase(o)}
	r.Refresh(inv)
	return r
}

// Refresh takes a new snapshot. A name that the configuration no longer has keeps only the slots
// that containers have.
//
// A slot is as healthy as the GPU that it names, or once bound, as the GPU behind it; so all slots
// of an unused GPU go together.
func (r *Shares) Refresh(inv *inventory.Inventory) {
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
			id := inventory.ReplicaID(g.UUID, slot)
			devices = append(devices, server.Device{ID: id, Healthy: healthy[cmp.Or(assigned[id], g.UUID)], NUMA: numa})
		}
	}
	r.Offer(devices)
}

// Prefer implements [server.Resource]. It chooses replicas of as many different GPUs as there are, first of those
// with the fewest free replicas, so that other GPUs stay whole.
func (*Shares) Prefer(available, must []string, size int) ([]string, error) {
	return preferReplicas(available, must, size, func(a, b *replicated) int {
		return cmp.Or(cmp.Compare(a.Free, b.Free), cmp.Compare(a.Name, b.Name))
	})
}

// Allocate implements [server.Allocator]: it names what the driver's spec brings
// every container with a GPU.
func (r *Shares) Allocate(_ context.Context, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	if err := checkMode(r.now.Load(), config.ModeSGPU, inventory.DevicesOf(ids)); err != nil {
		return nil, err
	}
	return r.Answer(ids, cdi.CommonDevice)
}

// Unit is the unit of a [Counted] resource; its device IDs begin with it.
type Unit string

// Cores are percent of compute, Memory is in GiB.
const (
	Cores  Unit = "vcore"
	Memory Unit = "vmemory"
)

// Of returns the number of devices for a GPU: whole ones, since a request is for one GPU.
func (u Unit) Of(g *quota.GPU) int {
	if u == Cores {
		return quota.Whole
	}
	return int(g.Room() / config.GiB.InMiB())
}

// Counted is a resource that is only counted, as a [server.Resource]: devices
// without a GPU, such as vcore-0017, as many as all healthy shared GPUs are worth
// together. They do not show which GPU a container has, and how much of it; they are a
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

// replicated is a device with its replicas that a choice is made of.
type replicated struct {
	Name string
	// Taken counts the chosen replicas, Free those that were available.
	Taken, Free int
	available   []string
}

// preferReplicas chooses size IDs of available, with must among them, of as many
// different devices as there are; of those with equally many chosen the first in
// the order of compare, and of each the lowest numbers. IDs are replicas or devices' own names.
func preferReplicas(available, must []string, size int, compare func(a, b *replicated) int) ([]string, error) {
	if size > len(available) || size < len(must) {
		return nil, fmt.Errorf("%d of %d replicas with %d given", size, len(available), len(must))
	}
	devices := group(available, must)
	chosen := slices.Clone(must)
	for len(chosen) < size {
		devices = slices.DeleteFunc(devices, func(d *replicated) bool { return len(d.available) == 0 })
		if len(devices) == 0 {
			return nil, errors.New("a replica is given that is not available")
		}
		next := slices.MinFunc(devices, func(a, b *replicated) int {
			if a.Taken != b.Taken {
				return a.Taken - b.Taken
			}
			return compare(a, b)
		})
		chosen = append(chosen, next.available[0])
		next.available = next.available[1:]
		next.Taken++
	}
	slices.Sort(chosen)
	return chosen, nil
}

// group sorts replicas by device, in no order, and those of a device by their number.
func group(available, must []string) []*replicated {
	all := map[string]*replicated{}
	of := func(id string) *replicated {
		name := inventory.DeviceOf(id)
		if all[name] == nil {
			all[name] = &replicated{Name: name}
		}
		return all[name]
	}
	for _, id := range must {
		of(id).Taken++
	}
	for _, id := range slices.Compact(slices.SortedFunc(slices.Values(available), machine.CompareNames)) {
		if d := of(id); !slices.Contains(must, id) {
			d.available = append(d.available, id)
			d.Free++
		}
	}
	return slices.Collect(maps.Values(all))
}
