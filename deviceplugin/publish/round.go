// Package publish decides what the Node shows of its devices, and writes it:
// conditions, annotations, a taint and Events.
//
// [Desired] is pure: the same [Round] gives the same [Status]. A [Publisher] asks
// what a Round lacks, which pods hold the GPUs, and applies the Status apart from
// the agent's loop.
package publish

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/breaker"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/gpumode"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/discovery/capacity"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
)

// Round is the node as one round of the agent's loop found it. It is made once per
// round and never changed.
type Round struct {
	Node      string
	Vendors   devgpu.Vendors
	Inventory *inventory.Inventory
	Health    *health.Snapshot
	Modes     []gpumode.GPU
	// Wanted are the resources that the configuration calls for, Served those that
	// have a plugin, by name.
	Wanted []string
	Served map[string]Served
	// Seen are the devices that each resource has had, as device ID to the name that
	// users see: a device that fell off the bus is in no machine, and still missing.
	Seen map[string]map[string]string
	// Sharing reports whether the node shares GPUs, or did. WithoutShares is the
	// reason that it serves no shares all the same.
	Sharing       bool
	WithoutShares string
	// Release is the release of GPUs that lasts, zero if none does.
	Release release.Request
	// Rejects is whether the node rejects pod after pod.
	Rejects breaker.State
	// Usage is zero until a [Publisher] has asked.
	Usage Usage
}

// Served describes one served resource.
type Served struct {
	Kind   cdi.Kind
	Status server.Status
	// GPUs is nil unless Kind is [cdi.GPU].
	GPUs *resource.Snapshot
	// Reason explains why a resource of HCAs has fewer devices than possible.
	Reason string
}

// Counted is the kind of a resource of percents or GiB of shared GPUs, which has no CDI names.
const Counted cdi.Kind = "counted"

// Usage describes the use of the devices.
type Usage struct {
	// At is the time of the queries.
	At time.Time
	// Holders are the device IDs that pods hold, by resource of GPUs; a resource is
	// absent if they are not known.
	Holders map[string]map[string]bool
	// Containers hold GPUs, and Pods are the node's pods. They are known under a release and while
	// an unhealthy GPU drains.
	Containers []report.Binding
	Pods       []*corev1.Pod
	// NodeKnown reports whether the Node is known, Tainted whether it has the taint
	// of unhealthy GPUs.
	NodeKnown, Tainted bool
	// Release is the answer to a request for a release; nil if none lasts.
	Release *release.Status
}

// Shares reports whether shares of GPUs are served.
func (r *Round) Shares() bool { return r.Sharing && r.WithoutShares == "" }

// Reason returns why part of a served resource is unavailable, or an empty string.
func (r *Round) Reason(name string) string {
	s, faults, some := r.Served[name], map[string]string{}, len(r.Inventory.Shared) > 0
	switch s.Kind {
	case cdi.RDMA:
		return s.Reason
	case cdi.GPU:
		faults, some = s.GPUs.Faults(), len(s.GPUs.IDs()) > 0
	case cdi.SGPU, Counted:
		for i := range r.Inventory.Shared {
			if reason := r.Inventory.Shared[i].Unhealthy; reason != "" {
				faults[r.Inventory.Shared[i].UUID] = reason
			}
		}
	default: // No claim is a resource.
	}
	if len(faults) > 0 || some {
		var parts []string
		for _, id := range slices.Sorted(maps.Keys(faults)) {
			parts = append(parts, id+": "+faults[id])
		}
		return strings.Join(parts, "; ")
	}
	for _, offer := range capacity.Of(r.Inventory.Machine, r.Inventory.Config, r.Vendors) {
		if offer.Name == name {
			return offer.Reason
		}
	}
	return "it is not configured any more"
}

// members returns the HCAs of a configured resource.
func (r *Round) members(entry *config.RDMAResource) []allocate.Member {
	return allocate.Members(r.Inventory, r.Inventory.Config.WithRoles(r.Inventory.Machine), entry)
}

// label returns the name of a GPU or MIG device for users.
func (r *Round) label(id string) string {
	if at := gpuAt(r.Inventory.Machine, id); at >= 0 {
		return fmt.Sprintf("GPU %d", r.Inventory.Machine.GPUs[at].Index)
	}
	return id
}

func gpuAt(m *machine.Machine, uuid string) int {
	return slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == uuid })
}

// See returns Seen for this round: the devices that resources have now, and those of
// the last round that are still missing. A device that health has forgotten went
// away on purpose.
func (r *Round) See(last map[string]map[string]string) map[string]map[string]string {
	all := map[string]map[string]string{}
	for name, s := range r.Served {
		seen := map[string]string{}
		for id, label := range last[name] {
			if _, known := r.missing(id); known || r.present(id) {
				seen[id] = label
			}
		}
		if s.GPUs != nil {
			for _, id := range s.GPUs.IDs() {
				seen[id] = r.label(id)
			}
		} else if entry := r.Inventory.Config.RDMA.Resource(name); entry != nil {
			for _, member := range r.members(entry) {
				seen[member.ID] = r.Inventory.Machine.HCAs[member.Index].Name
			}
		}
		all[name] = seen
	}
	return all
}

func (r *Round) present(id string) bool {
	return gpuAt(r.Inventory.Machine, id) >= 0 || slices.Contains(r.Inventory.Machine.HCAIDs(), id)
}

// missing returns the state of a device that is in no machine any more, as far as health knows it.
func (r *Round) missing(id string) (state health.State, known bool) {
	if r.present(id) {
		return state, false
	}
	gpuState, isGPU := r.Health.GPUs[id]
	hcaState, isHCA := r.Health.HCAs[id]
	if isGPU {
		return gpuState, true
	}
	return hcaState, isHCA
}

// Registered reports whether the kubelet has registered resources of the node, and all that are served.
func (r *Round) Registered() bool {
	for _, s := range r.Served {
		if !s.Status.Registered {
			return false
		}
	}
	return len(r.Served) > 0
}
