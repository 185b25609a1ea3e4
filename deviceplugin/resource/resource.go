// Package resource is the resources that the kubelet is offered: GPUs, shares of GPUs,
// and HCAs. They offer devices, name a CDI device for each container, and have it
// prepared when the container starts.
//
// A GPU's device ID is its UUID, and means that very GPU. The ID of a share or of an HCA
// is a replica of one, so that every ID has one holder; what a container gets for it is
// deviceplugin/allocate's decision when the container starts. The package opens no
// device and knows no vendor and no pod. Its calls read an immutable snapshot, which
// Refresh makes from an inventory: none waits for hardware.
package resource

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/server"
)

// Options configures a base.
type Options struct {
	// Name is the full name, such as rdma/hca_shared_devices_ib.
	Name  string
	State *devicestate.State
	// Driver is the driver's CDI spec; nil where nothing of it is named.
	Driver *cdi.DriverSpec
	// Log defaults to none.
	Log *slog.Logger
}

// base is embedded by all resources. Its methods may be called from any goroutine.
type base struct {
	*server.List
	Options
}

// newBase makes a base without devices.
func newBase(o Options) *base {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &base{List: server.NewList(), Options: o}
}

// Offer replaces the devices.
func (r *base) Offer(devices []server.Device) {
	if r.List.Offer(devices) {
		r.Log.Info("devices changed", "resource", r.Name, "devices", len(devices))
	}
}

// Answer returns the answer to Allocate: a CDI name that was never used before, and
// the named devices of the driver's spec. It fails for a resource that is not configured, and for
// nothing else: its error fails the pod for good, while PreStart's is tried again.
func (r *base) Answer(ids []string, driver ...string) (*v1beta1.ContainerAllocateResponse, error) {
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

// checkMode rejects a GPU that is in another mode, or about to be: the kubelet may ask for
// one of an old list. Without this the GPU could be held in both.
func checkMode(inv *inventory.Inventory, in config.Mode, uuids []string) error {
	for _, uuid := range uuids {
		if g, known := inv.GPUs[uuid]; known && g.Mode != in {
			return fmt.Errorf("GPU %s is no longer allocated as %s", uuid, in)
		}
	}
	return nil
}

// PreStart implements [server.Allocator].
func (r *base) PreStart(ctx context.Context, ids []string) error {
	if r.Driver != nil {
		if err := r.Driver.Restore(); err != nil {
			return fmt.Errorf("the driver's CDI spec: %w", err)
		}
	}
	return r.State.Prepare(ctx, r.Name, ids)
}

// numaOf returns the nodes near a PCI function, if the kernel knows any.
func numaOf(f *machine.PCIFunction) []int64 {
	if f == nil || f.NUMA == nil {
		return nil
	}
	return []int64{int64(*f.NUMA)}
}
