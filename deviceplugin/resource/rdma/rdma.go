// Package rdma hands out HCAs: it finds what a node's RDMA resources are made of
// and serves each of them to the kubelet.
//
// The number that a pod asks for is a number of HCAs. A device ID is a replica of
// an HCA, so that several pods can share an HCA and every ID has one holder. Which
// HCAs a container really gets is decided when it starts, beside its GPUs, by the
// device state: the package itself opens no device, writes no file, and knows
// nothing of pods.
package rdma

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/replica"
	"github.com/heddle-dev/heddle/deviceplugin/server"
)

// State decides which HCAs a container gets.
type State interface {
	// Allocate makes the CDI device of one Allocate call.
	Allocate(resource string, ids []string) (string, error)
	// Prepare puts HCAs behind the names of those that hold ids.
	Prepare(ctx context.Context, resource string, ids []string) error
	// Assigned is which HCA a device ID in use stands for, by ID.
	Assigned(resource string) map[string]string
}

// Options are what a Resource is made of.
type Options struct {
	// Name is the full name: rdma/hca_shared_devices_ib.
	Name  string
	State State
}

// Resource is one RDMA resource, as a [server.Resource].
type Resource struct {
	*server.List
	options Options

	mu sync.Mutex // guards what follows
	// seen are all IDs that were ever offered: the kubelet may ask for one
	// of a list that it read before the last change.
	seen map[string]bool
	// reason is why there are fewer IDs than there could be.
	reason string
}

// New makes the resource and takes its first snapshot.
func New(o Options, inv *inventory.Inventory) *Resource {
	r := &Resource{List: server.NewList(), options: o, seen: map[string]bool{}}
	r.Refresh(inv)
	return r
}

// Refresh takes a new snapshot.
func (r *Resource) Refresh(inv *inventory.Inventory) {
	devices, reason := r.look(inv)
	r.mu.Lock()
	r.reason = reason
	for i := range devices {
		r.seen[devices[i].ID] = true
	}
	r.mu.Unlock()
	r.Offer(devices)
}

// Reason is why there are none or fewer healthy IDs than the HCAs could give;
// empty if nothing is wrong.
func (r *Resource) Reason() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reason
}

// Prefer chooses replicas of different HCAs first, and of those with the most
// free ones. Which HCAs are beside the container's GPUs is not known yet: the
// device state chooses those.
func (r *Resource) Prefer(available, must []string, size int) ([]string, error) {
	return Prefer(available, must, size)
}

// Prefer chooses replicas of as many different HCAs as there are, of those with
// the most free replicas first, then in PCI order.
func Prefer(available, must []string, size int) ([]string, error) {
	return replica.Prefer(available, must, size, func(a, b *replica.Device) int {
		return cmp.Or(cmp.Compare(b.Free, a.Free), machine.ComparePCI(a.Name, b.Name), cmp.Compare(a.Name, b.Name))
	})
}

// Allocate gives out a CDI name. It rejects only IDs that were never offered:
// its error would fail the pod for good, while PreStart's is tried again.
func (r *Resource) Allocate(_ context.Context, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	if id := r.unknown(ids); id != "" {
		return nil, fmt.Errorf("%s has no device %q", r.options.Name, id)
	}
	name, err := r.options.State.Allocate(r.options.Name, ids)
	if err != nil {
		return nil, err
	}
	return &v1beta1.ContainerAllocateResponse{CdiDevices: []*v1beta1.CDIDevice{{Name: name}}}, nil
}

// unknown is the first that was never offered.
func (r *Resource) unknown(ids []string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		if !r.seen[id] {
			return id
		}
	}
	return ""
}

// PreStart binds the container's devices.
func (r *Resource) PreStart(ctx context.Context, ids []string) error {
	return r.options.State.Prepare(ctx, r.options.Name, ids)
}

// look makes the devices of an inventory, with the reason why there are not more.
func (r *Resource) look(inv *inventory.Inventory) (devices []server.Device, reason string) {
	c := inv.Config
	m := c.WithRoles(inv.Machine)
	at := slices.IndexFunc(c.RDMA.Resources, func(x config.RDMAResource) bool { return x.Name == r.options.Name })
	if at < 0 {
		return nil, "it is not configured any more"
	}
	entry := &c.RDMA.Resources[at]
	members := MembersOf(inv, m, entry)
	if entry.Count == config.CountAll {
		devices = combined(entry, members)
	} else {
		devices = replicas(m, entry, members, r.options.State.Assigned(r.options.Name))
	}
	return devices, reasonOf(m, entry, members)
}

// combined are the devices of a resource with count all.
func combined(entry *config.RDMAResource, members []Member) []server.Device {
	if len(members) == 0 {
		return nil
	}
	healthy := slices.ContainsFunc(members, func(m Member) bool { return m.Unhealthy == "" })
	devices := make([]server.Device, entry.Sharers)
	for slot := range devices {
		devices[slot] = server.Device{ID: replica.ID(AllHCAs, slot), Healthy: healthy}
	}
	return devices
}

// replicas are those of a resource that counts HCAs. One is as healthy as the HCA
// that it names, or once bound, as the one that it stands for.
func replicas(
	m *machine.Machine, entry *config.RDMAResource, members []Member, bound map[string]string,
) []server.Device {
	well := make(map[string]bool, len(members))
	for _, member := range members {
		well[member.ID] = member.Unhealthy == ""
	}
	devices := make([]server.Device, 0, len(members)*entry.Sharers)
	for _, member := range members {
		near := numaOf(m, &m.HCAs[member.Index])
		for slot := range entry.Sharers {
			id := replica.ID(member.ID, slot)
			d := server.Device{ID: id, Healthy: well[member.ID], NUMA: near}
			if hca, ok := bound[id]; ok {
				d.Healthy = well[hca]
			}
			devices = append(devices, d)
		}
	}
	return devices
}

// numaOf is the NUMA node of an HCA, none if the kernel has none.
func numaOf(m *machine.Machine, h *machine.HCA) []int64 {
	f := m.Function(h.PCI)
	if f == nil && h.PhysFn != "" {
		f = m.Function(h.PhysFn)
	}
	if f == nil || f.NUMA == nil {
		return nil
	}
	return []int64{int64(*f.NUMA)}
}

// netnsExclusive is the kernel's mode in which an HCA belongs to one network
// namespace.
const netnsExclusive = "exclusive"

// reasonOf is what is wrong with a resource.
func reasonOf(m *machine.Machine, entry *config.RDMAResource, members []Member) string {
	var faults []string
	for _, member := range members {
		if member.Unhealthy != "" {
			faults = append(faults, m.HCAs[member.Index].Name+": "+member.Unhealthy)
		}
	}
	if len(members) == 0 {
		for i := range m.HCAs {
			_, why := entry.Selectors.Select(m, &m.HCAs[i])
			faults = append(faults, m.HCAs[i].Name+": "+why)
		}
		if len(faults) == 0 {
			faults = append(faults, "there are no RDMA devices")
		}
	}
	if m.RDMA.NetnsMode == netnsExclusive && len(members) > 0 {
		faults = append(faults, "RDMA devices belong to one network namespace (netns mode exclusive): "+
			"only pods on the host's network can open them")
	}
	if len(members) > 0 && !m.RDMA.RDMACM {
		faults = append(faults, "there is no /dev/infiniband/rdma_cm (module rdma_ucm)")
	}
	return strings.Join(faults, "; ")
}
