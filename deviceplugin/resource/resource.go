// Package resource is what the resources of GPUs, of their shares and of HCAs
// have in common: they offer devices to the kubelet, name a CDI device for each
// container, and have it prepared when the container starts.
//
// It decides nothing about devices: which there are is the packages' below it,
// and what a container gets is deviceplugin/allocate's.
package resource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/server"
)

// Options are what a Resource works with.
type Options struct {
	// Name is the full name, such as rdma/hca_shared_devices_ib.
	Name  string
	State *devicestate.State
	// Driver is the driver's CDI spec; nil where nothing of it is named.
	Driver *cdi.DriverSpec
	// Log defaults to none.
	Log *slog.Logger
}

// Resource is for a [server.Resource] to embed. Its methods may be called at
// once.
type Resource struct {
	*server.List
	Options

	mu sync.Mutex
	// left are the IDs that were offered and are not any more: the kubelet may ask
	// for one of a list that it read before the last change. mu guards it.
	left map[string]bool
}

// New makes a Resource without devices.
func New(o Options) *Resource {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Resource{List: server.NewList(), Options: o, left: map[string]bool{}}
}

// Offer replaces the devices.
func (r *Resource) Offer(devices []server.Device) {
	if r.offer(devices) {
		r.Log.Info("devices changed", "resource", r.Name, "devices", len(devices))
	}
}

func (r *Resource) offer(devices []server.Device) (differ bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.Devices()
	differ = r.List.Offer(devices)
	for i := range before {
		if id := before[i].ID; differ && !r.Offers(id) {
			r.left[id] = true
		}
	}
	return differ
}

// Answer is the answer to Allocate: a CDI name that was never used before, and
// the named devices of the driver's spec. It fails for IDs that were never
// offered and for a name that cannot be recorded, and for nothing else: its error
// fails the pod for good, while PreStart's is tried again.
func (r *Resource) Answer(ids []string, driver ...string) (*v1beta1.ContainerAllocateResponse, error) {
	ids = slices.Sorted(slices.Values(ids))
	if err := r.check(ids); err != nil {
		return nil, err
	}
	name, err := r.State.Allocate(r.Name, ids)
	if err != nil {
		return nil, fmt.Errorf("name the devices: %w", err)
	}
	response := &v1beta1.ContainerAllocateResponse{CdiDevices: []*v1beta1.CDIDevice{{Name: name}}}
	if r.Driver != nil && len(driver) > 0 {
		for _, name := range r.Driver.Names(driver) {
			response.CdiDevices = append(response.CdiDevices, &v1beta1.CDIDevice{Name: name})
		}
	}
	return response, nil
}

// CheckMode rejects a GPU that is in another mode, or about to be: the kubelet may ask for
// one of an old list. Without this the GPU could be held in both.
func CheckMode(inv *inventory.Inventory, in config.Mode, uuids []string) error {
	for _, uuid := range uuids {
		if g, known := inv.GPUs[uuid]; known && g.Mode != in {
			return fmt.Errorf("GPU %s is no longer allocated as %s", uuid, in)
		}
	}
	return nil
}

// check rejects IDs, which are sorted, that the resource never had.
func (r *Resource) check(ids []string) error {
	if len(ids) == 0 {
		return errors.New("no device IDs")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, id := range ids {
		if !r.left[id] && !r.Offers(id) {
			return fmt.Errorf("%s has no device %q", r.Name, id)
		}
		if i > 0 && ids[i-1] == id {
			return fmt.Errorf("device %q is named twice", id)
		}
	}
	return nil
}

// PreStart implements [server.Allocator].
func (r *Resource) PreStart(ctx context.Context, ids []string) error {
	if r.Driver != nil {
		if err := r.Driver.Restore(); err != nil {
			return fmt.Errorf("the driver's CDI spec: %w", err)
		}
	}
	return r.State.Prepare(ctx, r.Name, ids)
}

// NUMA are the nodes that a PCI function is near to, none if the kernel has none.
func NUMA(f *machine.PCIFunction) []int64 {
	if f == nil || f.NUMA == nil {
		return nil
	}
	return []int64{int64(*f.NUMA)}
}
