package allocate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// consumer is one container's part of one shared GPU.
type consumer struct {
	kubelet.Container
	quota.Claim
}

// usage has the parts of GPUs that containers have.
type usage struct {
	*Node
	consumers []consumer
	// exclusive holds the container that has a GPU, or a MIG device of it, exclusively.
	exclusive map[string]kubelet.Container
}

// add adds the shares of an entry's container.
func (u *usage) add(e *Entry) {
	for _, s := range e.Shares {
		claim := quota.Claim{Phase: e.Phase, Share: s, Policy: quota.Policy(e.Policy)}
		u.consumers = append(u.consumers, consumer{*e.Owner, claim})
	}
}

func (u *usage) hold(ids []string, c kubelet.Container) {
	for _, id := range ids {
		u.exclusive[id] = c
	}
}

// shareholder returns a container of another pod that has a share of a GPU, or may
// have; nil if none does.
func (u *usage) shareholder(uuid string, pod kubelet.Pod) *kubelet.Container {
	for i := range u.consumers {
		if c := &u.consumers[i]; c.Share.UUID == uuid && !c.Pod.Same(pod) {
			return &c.Container
		}
	}
	for i := range u.Unrecorded {
		if a := &u.Unrecorded[i]; slices.Contains(inventory.DevicesOf(a.IDs), uuid) && !a.Pod.Same(pod) {
			return &a.Container
		}
	}
	return nil
}

// usage derives who has what from the kubelet's snapshot and the entries.
func (n *Node) usage() *usage {
	u := &usage{Node: n, exclusive: make(map[string]kubelet.Container)}
	var holders kubelet.Holders
	var allocations []kubelet.Allocation
	if n.Snapshot != nil {
		holders, allocations = n.Snapshot.Holders(), n.Snapshot.Allocations
	}
	// Entries that are not distinguishable are of one container and one decision.
	latest := make(map[kubelet.Container]*Entry, len(allocations))
	for _, e := range n.Entries {
		if e.Owner == nil || e.Kind == cdi.RDMA || !n.live(e, holders) {
			continue
		}
		if e.Kind == cdi.GPU {
			u.hold(e.IDs, *e.Owner)
		} else if old := latest[*e.Owner]; len(e.Shares) > 0 && (old == nil || later(e, old)) {
			latest[*e.Owner] = e
		}
	}
	for _, e := range latest {
		u.add(e)
	}
	for i := range allocations {
		a := &allocations[i]
		if kind, err := KindOf(n.Inventory.Config, a.Resource); err == nil && kind == cdi.GPU {
			u.hold(a.IDs, a.Container)
		}
	}
	return u
}

func later(a, b *Entry) bool {
	return cmp.Or(cmp.Compare(a.Decision, b.Decision), a.Created.Compare(b.Created), cmp.Compare(a.Device, b.Device)) > 0
}

// SharedGPUs returns the inventory's with all that is taken.
func (n *Node) SharedGPUs() []quota.GPU { return n.usage().fill(nil, quota.Phase{}) }

// SharedGPUsWithout returns the inventory's with the shares of containers with GPUs not
// chosen by a component.
func (n *Node) SharedGPUsWithout(by string) []quota.GPU {
	other := *n
	other.Entries = maps.Clone(n.Entries)
	maps.DeleteFunc(other.Entries, func(_ string, e *Entry) bool { return e.By == by })
	return other.SharedGPUs()
}

// ShareClaims lists the GPUs that containers have shares of, by container.
func (n *Node) ShareClaims() map[kubelet.Container][]string {
	all := make(map[kubelet.Container][]string)
	for _, c := range n.usage().consumers {
		all[c.Container] = append(all[c.Container], c.Share.UUID)
	}
	for _, a := range n.Unrecorded {
		all[a.Container] = inventory.DevicesOf(a.IDs)
	}
	return all
}

// fill enters the amounts taken into empty shared GPUs. Without a container it enters all of them;
// with a container only the amounts unavailable to it: the peak of other pods, and the claims of
// its own pod while it runs.
func (u *usage) fill(container *kubelet.Container, phase quota.Phase) []quota.GPU {
	gpus := slices.Clone(u.Inventory.Shared)
	at := make(map[string]int, len(gpus))
	for i := range gpus {
		at[gpus[i].UUID] = i
	}
	u.close(gpus, container)
	type onGPU struct {
		gpu int
		pod kubelet.Pod
	}
	of := make(map[onGPU][]quota.Claim, len(u.consumers))
	for i := range u.consumers {
		c := &u.consumers[i]
		gpu, ok := at[c.Share.UUID]
		own := container != nil && c.Pod.Same(container.Pod)
		if !ok || own && c.Name == container.Name {
			continue
		}
		t := onGPU{gpu, c.Pod}
		if own {
			t.pod = container.Pod
		}
		of[t] = append(of[t], c.Claim)
		if !own || c.Phase.Overlaps(phase) {
			c.Mark(&gpus[gpu])
		}
	}
	for t, claims := range of {
		var with *quota.Phase
		if container != nil && t.pod == container.Pod {
			with = &phase
		}
		gpus[t.gpu].Charge(quota.Peak(claims, with))
	}
	return gpus
}

// close keeps GPUs from new consumers that a container has exclusively, or that
// an unrecorded one may have. The latter may have them again.
func (u *usage) close(gpus []quota.GPU, container *kubelet.Container) {
	reject := func(uuid, reason string) {
		i := slices.IndexFunc(gpus, func(g quota.GPU) bool { return g.UUID == uuid })
		if i >= 0 && (gpus[i].Unhealthy == "" || gpus[i].Draining) {
			gpus[i].Unhealthy, gpus[i].Draining = reason, false
		}
	}
	for _, id := range slices.Sorted(maps.Keys(u.exclusive)) {
		reject(cmp.Or(u.Inventory.Machine.ParentGPU(id), id), "held exclusively by "+u.exclusive[id].Pod.String())
	}
	for i := range gpus {
		if c := u.claimOf(gpus[i].UUID); c != nil {
			reject(gpus[i].UUID, "held by "+c.String())
		}
	}
	var own []string
	for _, a := range u.Unrecorded {
		if container != nil && a.Same(*container) {
			own = inventory.DevicesOf(a.IDs)
		}
	}
	for _, a := range u.Unrecorded {
		for _, uuid := range inventory.DevicesOf(a.IDs) {
			// Containers of one pod may have shared a GPU.
			if container == nil || !a.Pod.Same(container.Pod) || !slices.Contains(own, uuid) {
				reject(uuid, "kept for "+a.String()+": no checkpoint entry has its share")
			}
		}
	}
}

// Entry is one answer of Allocate, as the checkpoint on disk stores it: the CDI name, its resource,
// and once known, the container and the devices behind it. Entries are read across upgrades. They
// are immutable; a change replaces them.
type Entry struct {
	// Kind and Device are the CDI name.
	Kind     cdi.Kind  `json:"kind"`
	Device   string    `json:"device"`
	Resource string    `json:"resource"`
	IDs      []string  `json:"ids"`
	Created  time.Time `json:"created"`
	// Owner is nil until the container starts for the first time.
	Owner *kubelet.Container `json:"owner,omitempty"`
	// Modes are the modes of the GPUs that IDs are partitions of, at the time of Allocate.
	Modes map[string]string `json:"modes,omitempty"`
	// HCAs lists the identities of the HCAs behind IDs, in their order; empty for an ID without an
	// HCA.
	HCAs []string `json:"hcas,omitempty"`
	// Extra are the HCAs beyond the IDs (count all).
	Extra []string `json:"extra,omitempty"`
	// Class is the longest path from one of the HCAs to the nearest GPU.
	Class string `json:"class,omitempty"`

	// Sharing has the shares behind IDs, in their order; without any nothing was decided yet.
	allocation.Sharing
	// Phase is when the container with shares runs, RunAs its user as far as its pod names one,
	// Priority its pod's, Enforced what its limits were first enforced by.
	Phase    quota.Phase      `json:"turn,omitzero"`
	RunAs    *int64           `json:"runAs,omitempty"`
	Priority int32            `json:"priority,omitempty"`
	Enforced enforce.Enforced `json:"enforced,omitzero"`

	// Decision numbers the decision that made it so; 0 for those from disk.
	Decision uint64 `json:"-"`
}

// Name returns the entry's CDI name.
func (e *Entry) Name() cdi.Name { return cdi.Name{Kind: e.Kind, Device: e.Device} }

// Bound lists the HCAs, without repeats.
func (e *Entry) Bound() []string {
	ids := kubelet.SortIDs(slices.Concat(e.HCAs, e.Extra))
	return slices.DeleteFunc(ids, func(id string) bool { return id == "" })
}

// OwnedBy reports whether the entry is known to be a container's.
func (e *Entry) OwnedBy(c kubelet.Container) bool { return e.Owner != nil && e.Owner.Same(c) }

// HasShares reports whether a container has its shares by the entry.
func (e *Entry) HasShares(c kubelet.Container) bool { return len(e.Shares) > 0 && e.OwnedBy(c) }

// ParseEntry reads the entry of a device.
func ParseEntry(content []byte, device string) (*Entry, error) {
	var e Entry
	if err := json.Unmarshal(content, &e); err != nil {
		return nil, err
	}
	switch name, ok := cdi.ParseName(e.Name().String()); {
	case !ok || name.Device != device:
		return nil, fmt.Errorf("the entry is of %q", e.Name())
	case e.Resource == "" || len(e.IDs) == 0:
		return nil, errors.New("resource or device IDs are missing")
	case len(e.HCAs) > len(e.IDs):
		return nil, errors.New("more HCAs than device IDs")
	case len(e.Shares) > 0 && (len(e.Shares) != len(e.IDs) || e.Owner == nil):
		return nil, errors.New("shares without an owner, or not as many as device IDs")
	case !e.Name().MadeFor(e.Resource, e.IDs):
		return nil, errors.New("its name was made for other device IDs")
	}
	if err := wellknown.CheckResource(e.Resource); err != nil {
		return nil, fmt.Errorf("its resource: %w", err)
	}
	if len(e.Shares) > 0 {
		if err := allocation.CheckShares(e.Shares); err != nil {
			return nil, err
		}
	}
	return &e, nil
}
