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
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/replica"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// State decides which GPUs a container gets.
type State interface {
	// Allocate makes the CDI device of one Allocate call.
	Allocate(resource string, ids []string) (string, error)
	// Prepare puts GPUs behind the names of those that hold ids.
	Prepare(ctx context.Context, resource string, ids []string) error
	// Assigned is which GPU a device ID in use stands for, by ID.
	Assigned(resource string) map[string]string
}

// Static is the driver's own CDI spec.
type Static interface {
	Names(ids []string) []string
	Restore() error
}

// Pods knows for which container the kubelet may be asking.
type Pods interface {
	// Expected are the GPUs, best first, that a container will get that may be
	// meant by a request for so many replicas; none if that is not known.
	Expected(size int) []string
}

// Options are what a Resource works with.
type Options struct {
	// Name is the full name: nvidia.com/sgpu.
	Name  string
	State State
	// Static is nil where there is no CDI: then nothing is named of it.
	Static Static
	// Pods may be nil.
	Pods Pods
	// Log defaults to none.
	Log *slog.Logger
}

// Resource is the replicas of shared GPUs, as a [server.Resource]. Its methods
// may be called at once.
type Resource struct {
	*server.List
	options Options
	// faults are why GPUs are not handed out, by UUID.
	faults atomic.Pointer[map[string]string]

	// mu serializes refreshes and guards seen.
	mu   sync.Mutex
	seen map[string]bool
}

var _ server.Resource = (*Resource)(nil)

// New makes the resource and takes its first snapshot.
func New(o Options, inv *inventory.Inventory) *Resource {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r := &Resource{List: server.NewList(), options: o, seen: map[string]bool{}}
	r.Refresh(inv)
	return r
}

// Refresh takes a new snapshot. Under a name that the configuration has no more
// there are no slots but those that containers have.
func (r *Resource) Refresh(inv *inventory.Inventory) {
	var shared []quota.GPU
	if inv.Config.Resources.SGPU == r.options.Name {
		shared = inv.Shared
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	devices, faults := r.devices(shared)
	r.faults.Store(&faults)
	for i := range devices {
		r.seen[devices[i].ID] = true
	}
	if r.Offer(devices) {
		r.options.Log.Info("replicas of shared GPUs changed",
			"resource", r.options.Name, "devices", len(devices), "faults", len(faults))
	}
}

// devices are the slots, with the unhealthy reasons of GPUs. A slot is as healthy as the
// GPU that it names, or once bound, as the one that it stands for; so all slots
// of an unused GPU go together.
func (r *Resource) devices(gpus []quota.GPU) (devices []server.Device, faults map[string]string) {
	bound := r.options.State.Assigned(r.options.Name)
	faults = map[string]string{}
	well := make(map[string]bool, len(gpus))
	for i := range gpus {
		c := &gpus[i]
		well[c.UUID] = c.Unhealthy == ""
		if c.Unhealthy != "" {
			faults[c.UUID] = c.Unhealthy
		}
	}
	for i := range gpus {
		c := &gpus[i]
		var numa []int64
		if c.NUMA >= 0 {
			numa = []int64{int64(c.NUMA)}
		}
		for slot := range c.Slots {
			d := server.Device{ID: replica.ID(c.UUID, slot), Healthy: well[c.UUID], NUMA: numa}
			if gpu, ok := bound[d.ID]; ok {
				d.Healthy = well[gpu]
			}
			devices = append(devices, d)
		}
	}
	return devices, faults
}

// Faults are why no new pod gets GPUs, by UUID.
func (r *Resource) Faults() map[string]string { return maps.Clone(*r.faults.Load()) }

// Prefer implements [server.Resource].
func (r *Resource) Prefer(available, must []string, size int) ([]string, error) {
	var wanted []string
	if r.options.Pods != nil {
		wanted = r.options.Pods.Expected(size)
	}
	return Prefer(available, must, wanted, size)
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

// Allocate implements [server.Allocator]: a CDI name that was never used before,
// and what the driver's spec brings every container with a GPU. It rejects only
// IDs that were never offered, and a name that cannot be recorded.
func (r *Resource) Allocate(_ context.Context, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	if len(ids) == 0 {
		return nil, errors.New("no device IDs")
	}
	r.mu.Lock()
	for _, id := range ids {
		if !r.seen[id] {
			r.mu.Unlock()
			return nil, fmt.Errorf("%s has no device %q", r.options.Name, id)
		}
	}
	r.mu.Unlock()
	name, err := r.options.State.Allocate(r.options.Name, ids)
	if err != nil {
		return nil, err
	}
	response := &v1beta1.ContainerAllocateResponse{CdiDevices: []*v1beta1.CDIDevice{{Name: name}}}
	if r.options.Static != nil {
		for _, static := range r.options.Static.Names([]string{cdi.CommonDevice}) {
			response.CdiDevices = append(response.CdiDevices, &v1beta1.CDIDevice{Name: static})
		}
	}
	return response, nil
}

// PreStart implements [server.Allocator].
func (r *Resource) PreStart(ctx context.Context, ids []string) error {
	if r.options.Static != nil {
		if err := r.options.Static.Restore(); err != nil {
			return fmt.Errorf("the driver's CDI spec: %w", err)
		}
	}
	return r.options.State.Prepare(ctx, r.options.Name, ids)
}
