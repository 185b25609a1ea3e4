package resource

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/server"
)

// HCAs is an RDMA resource, as a [server.Resource].
type HCAs struct {
	*base
	// reason explains why there are fewer IDs than possible.
	reason atomic.Pointer[string]
}

// NewHCAs makes the resource and takes its first snapshot.
func NewHCAs(o Options, inv *inventory.Inventory) *HCAs {
	r := &HCAs{base: newBase(o)}
	r.Refresh(inv)
	return r
}

// Refresh takes a new snapshot.
func (r *HCAs) Refresh(inv *inventory.Inventory) {
	devices, reason := r.look(inv)
	r.reason.Store(&reason)
	r.Offer(devices)
}

// Reason returns why there are fewer healthy IDs than the HCAs could provide, or an empty string.
func (r *HCAs) Reason() string { return *r.reason.Load() }

// Prefer chooses replicas of as many different HCAs as there are, of those with
// the most free replicas first, then in PCI order. Which HCAs are beside the
// container's GPUs is not known yet: they are chosen when it starts.
func (*HCAs) Prefer(available, must []string, size int) ([]string, error) {
	return preferReplicas(available, must, size, func(a, b *replicated) int {
		return cmp.Or(cmp.Compare(b.Free, a.Free), machine.ComparePCI(a.Name, b.Name), cmp.Compare(a.Name, b.Name))
	})
}

// Allocate implements [server.Allocator].
func (r *HCAs) Allocate(_ context.Context, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	return r.Answer(ids)
}

// look makes the devices of an inventory, with the reason if there are fewer than possible.
func (r *HCAs) look(inv *inventory.Inventory) (devices []server.Device, reason string) {
	c := inv.Config
	m := c.WithRoles(inv.Machine)
	entry := c.RDMA.Resource(r.Name)
	if entry == nil {
		return nil, "it is not configured any more"
	}
	members := allocate.Members(inv, m, entry)
	if entry.Count == config.CountAll {
		return combined(entry, members), reasonOf(inv, m, entry, members)
	}
	view := r.State.View()
	if entry.Sharers == 1 {
		for hca, by := range view.UnderReplicas(r.Name) {
			at := slices.IndexFunc(members, func(x allocate.Member) bool { return x.ID == hca })
			if at >= 0 && members[at].Unhealthy == "" {
				members[at].Unhealthy = by + " has it under a device ID of the time when it was shared"
			}
		}
	}
	return replicas(m, entry, members, view.Assigned(r.Name)), reasonOf(inv, m, entry, members)
}

// combined returns the devices of a resource with count all.
func combined(entry *config.RDMAResource, members []allocate.Member) []server.Device {
	if len(members) == 0 {
		return nil
	}
	healthy := slices.ContainsFunc(members, func(m allocate.Member) bool { return m.Unhealthy == "" })
	devices := make([]server.Device, entry.Sharers)
	for slot := range devices {
		devices[slot] = server.Device{ID: inventory.ReplicaID(allocate.AllHCAs, slot), Healthy: healthy}
	}
	return devices
}

// replicas returns the devices of a resource that counts HCAs. One is as healthy as the HCA
// that it names, or once bound, as the one that it stands for.
func replicas(
	m *machine.Machine, entry *config.RDMAResource, members []allocate.Member, bound map[string]string,
) []server.Device {
	well := make(map[string]bool, len(members))
	for _, member := range members {
		well[member.ID] = member.Unhealthy == ""
	}
	devices := make([]server.Device, 0, len(members)*entry.Sharers)
	for _, member := range members {
		h := &m.HCAs[member.Index]
		near := numaOf(cmp.Or(m.Function(h.PCI), m.Function(h.PhysFn)))
		for slot := range entry.Sharers {
			id := allocate.DeviceID(entry, member.ID, slot)
			d := server.Device{ID: id, Healthy: well[member.ID], NUMA: near}
			if hca, ok := bound[id]; ok {
				d.Healthy = well[hca]
			}
			devices = append(devices, d)
		}
	}
	return devices
}

// reasonOf describes the faults of a resource.
func reasonOf(
	inv *inventory.Inventory, m *machine.Machine, entry *config.RDMAResource, members []allocate.Member,
) string {
	var faults []string
	for _, member := range members {
		if member.Unhealthy != "" {
			faults = append(faults, m.HCAs[member.Index].Name+": "+member.Unhealthy)
		}
	}
	if len(members) == 0 {
		for i := range m.HCAs {
			_, why := inv.Config.RDMA.Select(m, entry, &m.HCAs[i])
			faults = append(faults, m.HCAs[i].Name+": "+why)
		}
		if len(faults) == 0 {
			faults = append(faults, "no RDMA devices")
		}
	}
	if m.RDMA.NetnsMode == allocate.NetnsExclusive && len(members) > 0 && entry.Sharers > 1 {
		faults = append(faults, "RDMA devices belong to one network namespace (netns mode exclusive): "+
			"only pods on the host's network can open them")
	}
	if len(members) > 0 && !m.RDMA.RDMACM {
		faults = append(faults, "missing /dev/infiniband/rdma_cm (module rdma_ucm)")
	}
	return strings.Join(faults, "; ")
}
