package devicestate

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/checkpoint"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Allocation is what a container has.
type Allocation struct {
	Namespace string
	Pod       string
	UID       string
	Container string
	// GPUs are UUIDs, HCAs RDMA names, HCAIDs identities in the same order.
	GPUs   []string
	HCAs   []string
	HCAIDs []string
	// Class is the longest path from one of the HCAs to the nearest GPU of the
	// container; empty without either.
	Class string
	// Shares are those of shared GPUs, of QoS policy Policy, which By chose; see
	// package allocation.
	Shares []allocation.Share
	Policy string
	By     string
	// Enforced is what the limits of the shares are enforced by.
	Enforced enforce.Enforced
	// Unrecorded: neither an entry nor a CDI spec is left of it. GPUs are the
	// shared ones that it may have, and that no other pod gets.
	Unrecorded bool
	// CDINames are the names that Allocate gave, by resource.
	CDINames map[string]string
}

// Allocations are those of all containers that have started, by namespace, pod
// and container; with those that have not and whose pod has its shares.
func (s *State) Allocations() []Allocation {
	s.mu.Lock()
	byOwner := make(map[kubelet.Container][]*checkpoint.Entry)
	for _, e := range s.entries {
		if e.Owner != nil && !s.isGoneLocked(e) {
			byOwner[*e.Owner] = append(byOwner[*e.Owner], e)
		}
	}
	recovered := s.recovered
	s.mu.Unlock()
	m := s.inventory.Load().Machine
	names, order := make(map[string]string, len(m.HCAs)), make(map[string]int, len(m.HCAs))
	for i, id := range m.HCAIDs() {
		names[id], order[id] = m.HCAs[i].Name, i
	}
	all := make([]Allocation, 0, len(byOwner))
	for c, entries := range byOwner {
		a := newAllocation(c, entries)
		slices.SortFunc(a.HCAIDs, func(p, q string) int { return order[p] - order[q] })
		for _, id := range a.HCAIDs {
			a.HCAs = append(a.HCAs, names[id])
		}
		all = append(all, a)
	}
	for i := range recovered {
		if r := &recovered[i]; byOwner[r.Container] == nil {
			a := newAllocation(r.Container, nil)
			a.GPUs, a.Unrecorded = r.GPUs, true
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(p, q Allocation) int {
		return strings.Compare(
			strings.Join([]string{p.Namespace, p.Pod, p.Container, p.UID}, "\x00"),
			strings.Join([]string{q.Namespace, q.Pod, q.Container, q.UID}, "\x00"))
	})
	return all
}

func newAllocation(c kubelet.Container, entries []*checkpoint.Entry) Allocation {
	a := Allocation{
		Namespace: c.Namespace, Pod: c.Pod.Name, UID: c.UID, Container: c.Name, CDINames: make(map[string]string),
	}
	for _, e := range entries {
		a.CDINames[e.Resource] = e.Name().String()
		switch e.Kind {
		case cdi.GPU:
			a.GPUs = append(a.GPUs, e.IDs...)
		case cdi.SGPU:
			a.Shares, a.Policy, a.By, a.Enforced = e.Shares, e.Policy, e.By, e.Enforced
		case cdi.RDMA:
			a.HCAIDs = append(a.HCAIDs, e.Bound()...)
		}
		if e.Class != "" && (a.Class == "" || allocate.Farther(e.Class, a.Class)) {
			a.Class = e.Class
		}
	}
	slices.Sort(a.GPUs)
	return a
}

// isGoneLocked reports whether an entry's pod is gone. It is for holders of mu.
func (s *State) isGoneLocked(e *checkpoint.Entry) bool {
	_, gone := s.gone[e.Device]
	return gone
}

// GPUs are the shared GPUs with what is taken by containers that are known,
// without asking the kubelet.
func (s *State) GPUs() []quota.GPU {
	s.mu.Lock()
	defer s.mu.Unlock()
	node := s.nodeLocked(&observation{})
	return node.RecordedGPUs(func(e *checkpoint.Entry) bool { return !s.isGoneLocked(e) })
}

// Limits are the limits of all containers that have shares and may be running.
func (s *State) Limits() []enforce.Limit {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []enforce.Limit
	for _, e := range s.entries {
		if e.Owner != nil && len(e.Shares) > 0 {
			all = append(all, limitOf(e, s.inventory.Load()))
		}
	}
	return all
}

// Assigned is which HCA stands behind a device ID of an RDMA resource now, or
// which GPU behind one of shares: the health of an ID in use is that of its
// device.
func (s *State) Assigned(resource string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	assigned := make(map[string]string)
	for _, e := range s.entries {
		if s.isGoneLocked(e) || e.Resource != resource {
			continue
		}
		for i, hca := range e.HCAs {
			if hca != "" {
				assigned[e.IDs[i]] = hca
			}
		}
		for i, share := range e.Shares {
			assigned[e.IDs[i]] = share.UUID
		}
	}
	return assigned
}

// Resources are those, sorted, that names were given out for and that containers
// may still have, whether or not they are in the configuration: a container starts
// only while its resources are served.
func (s *State) Resources() (gpus, hcas, slots []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kinds := map[string]cdi.Kind{}
	for _, e := range s.entries {
		kinds[e.Resource] = e.Kind
	}
	for _, resource := range slices.Sorted(maps.Keys(kinds)) {
		switch kinds[resource] {
		case cdi.GPU:
			gpus = append(gpus, resource)
		case cdi.SGPU:
			slots = append(slots, resource)
		case cdi.RDMA:
			hcas = append(hcas, resource)
		}
	}
	return gpus, hcas, slots
}

// Elsewhere names the container that has a GPU under another resource than this
// one, empty if none: of a resource that was renamed, or by another MIG strategy.
func (s *State) Elsewhere(resource, id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if e.Kind != cdi.GPU || e.Resource == resource || !slices.Contains(e.IDs, id) {
			continue
		}
		if e.Owner == nil {
			return "a container that has not started has it as " + e.Resource
		}
		return e.Owner.String() + " has it as " + e.Resource
	}
	return ""
}

// Holders are the device IDs of a resource that pods hold, by either of the
// kubelet's accounts, or by the entries where the kubelet has lost its own. It
// fails if one of the kubelet's two cannot be read.
func (s *State) Holders(ctx context.Context, resource string) (map[string]bool, error) {
	seen, err := s.observe(ctx)
	if err == nil {
		err = seen.CheckpointErr
	}
	if err != nil {
		return nil, err
	}
	held := make(map[string]bool)
	for _, a := range slices.Concat(seen.Allocations, seen.Quantities) {
		if a.Resource == resource {
			for _, id := range a.IDs {
				held[id] = true
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.forgottenLocked(resource, false) {
		held[id] = true
	}
	return held, nil
}

// Held is a device that a pod holds.
type Held struct {
	Resource, ID string
	// Pod is its namespace and name, or "pod UID".
	Pod string
	// Unlisted: only the kubelet's checkpoint knows the pod, which keeps those that
	// have ended until it is written again.
	Unlisted bool
}

// admitted is the holder of what Allocate gave out and the kubelet has not in its
// accounts yet.
const admitted = "a pod that is being admitted"

// Held are the devices of all resources that pods hold: by either of the
// kubelet's accounts, by the entries where the kubelet has lost its own or may
// have, and what was given out and is in neither account yet. A container with
// shares also holds those of the GPUs that it has, which need not be those of its
// device IDs: such an ID has no number. It fails if one of the kubelet's two
// accounts cannot be read.
func (s *State) Held(ctx context.Context) ([]Held, error) {
	seen, err := s.observe(ctx)
	if err == nil {
		err = seen.CheckpointErr
	}
	if err != nil {
		return nil, err
	}
	var held []Held
	for i := range seen.Allocations {
		a := &seen.Allocations[i]
		for _, id := range a.IDs {
			held = append(held, Held{a.Resource, id, a.Pod.String(), a.Pod.Name == ""})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	shares := s.inventory.Load().Config.Resources.SGPU
	for c, uuids := range s.nodeLocked(seen).ShareClaims() {
		for _, uuid := range uuids {
			held = append(held, Held{Resource: shares, ID: uuid + allocate.SlotMark, Pod: c.Pod.String()})
		}
	}
	s.confirmLocked(liveDevices(seen))
	for _, e := range s.entries {
		by := ""
		switch {
		case e.Owner == nil && !s.confirmed[e.Device] && s.options.Now().Sub(e.Created) < unclaimedFor:
			by = admitted
		case e.Owner != nil && (s.unsure || s.forgotten[*e.Owner]):
			by = e.Owner.Pod.String()
		default:
			continue
		}
		for _, id := range e.IDs {
			held = append(held, Held{Resource: e.Resource, ID: id, Pod: by})
		}
		for _, share := range e.Shares {
			held = append(held, Held{Resource: e.Resource, ID: share.UUID + allocate.SlotMark, Pod: by})
		}
	}
	return held, nil
}

// confirmLocked notes the entries that the kubelet has in its accounts, which have
// the names that Allocate gave. It is for holders of mu.
func (s *State) confirmLocked(live map[string]bool) {
	for device := range s.confirmed {
		if s.entries[device] != nil {
			live[device] = true
		}
	}
	s.confirmed = live
}
