// Package allocate decides which GPUs, shares of GPUs and HCAs a container is
// given: from what it requests, what the kubelet's snapshot and the checkpoint
// have of all containers, and the node's inventory.
//
// It is pure: a [Node] is the state at one moment, and the answers are
// values. Files, the kubelet and the API server are deviceplugin/devicestate's.
package allocate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// Node is the state of a node at one moment. It is never changed.
type Node struct {
	// Name is the node's name for schedulers.
	Name      string
	Inventory *inventory.Inventory
	// Snapshot is nil where the kubelet was not asked. Then all entries count but
	// those in Gone.
	Snapshot *kubelet.Snapshot
	Gone     map[string]bool
	// Entries are the checkpoint's, by device.
	Entries map[string]*Entry
	// Claims are the prepared ResourceClaims, by UID.
	Claims map[string]*Claim
	// Since is the number of the last decision before Snapshot was taken: an
	// entry with a later one is of a container that the snapshot may not have.
	Since uint64
	// Uncertain are containers that have the devices of their entries although the
	// kubelet does not know, or may not know yet, with the reason.
	Uncertain map[kubelet.Container]string
	// Unrecorded are the allocations of shares without entries: no other pod gets the
	// GPUs that their device IDs name.
	Unrecorded []kubelet.Allocation
}

// KindOf returns the kind of a resource of this configuration.
func KindOf(c *config.NodeConfig, resource string) (cdi.Kind, error) {
	switch {
	case c.RDMA.Resource(resource) != nil:
		return cdi.RDMA, nil
	case resource == c.Resources.SGPU:
		return cdi.SGPU, nil
	case resource == c.Resources.GPU || strings.HasPrefix(resource, c.Domains.Vendor+"/mig-"):
		return cdi.GPU, nil
	case c.MIGStrategy == config.MIGMixed && wellknown.IsPartition(strings.TrimPrefix(resource, c.Domains.Vendor+"/")):
		return cdi.GPU, nil
	}
	for _, other := range c.Others {
		if kind, err := KindOf(other, resource); kind == cdi.GPU {
			return kind, err
		}
	}
	return "", fmt.Errorf("unknown resource %s", resource)
}

// kindOf returns the kind of an allocation: by the configuration, else by its CDI
// names, else empty.
func (n *Node) kindOf(a *kubelet.Allocation) cdi.Kind {
	if kind, err := KindOf(n.Inventory.Config, a.Resource); err == nil {
		return kind
	}
	for _, text := range a.CDINames {
		if name, ok := cdi.ParseName(text); ok {
			return name.Kind
		}
	}
	return ""
}

// HasShares reports whether an allocation is one of shares.
func (n *Node) HasShares(a *kubelet.Allocation) bool { return n.kindOf(a) == cdi.SGPU }

// entriesOf returns the entries of the names that an allocation's container has. The
// kubelet's checkpoint has them. Without it they are all that were given out for
// these IDs and not yet to another container: an ID has one holder, so the others
// are of Allocate calls with a lost answer, and no container will use them.
func (n *Node) entriesOf(a *kubelet.Allocation) ([]*Entry, error) {
	if !a.Checkpointed {
		return n.entriesFor(a)
	}
	var entries []*Entry
	for _, text := range a.CDINames {
		name, ok := cdi.ParseName(text)
		if !ok {
			continue // The static spec's, or another plugin's.
		}
		if !name.MadeFor(a.Resource, a.IDs) {
			return nil, fmt.Errorf("CDI name %s was not made for its devices of %s", name, a.Resource)
		}
		e := n.Entries[name.Device]
		if e == nil {
			e = &Entry{Kind: name.Kind, Device: name.Device, Resource: a.Resource, IDs: a.IDs}
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// entriesFor is entriesOf without the kubelet's checkpoint.
func (n *Node) entriesFor(a *kubelet.Allocation) ([]*Entry, error) {
	var entries []*Entry
	for _, e := range n.Entries {
		if (e.Owner == nil || e.OwnedBy(a.Container)) && e.Resource == a.Resource && slices.Equal(e.IDs, a.IDs) {
			entries = append(entries, e)
		}
	}
	if _, err := KindOf(n.Inventory.Config, a.Resource); err == nil && len(entries) == 0 {
		return nil, fmt.Errorf("no checkpoint entry of an Allocate call for its %d devices of %s", len(a.IDs), a.Resource)
	}
	slices.SortFunc(entries, func(p, q *Entry) int { return cmp.Compare(p.Device, q.Device) })
	return entries, nil
}

// Unaccounted returns the allocations of shares without an entry.
func (n *Node) Unaccounted() []kubelet.Allocation {
	return slices.DeleteFunc(slices.Clone(n.Snapshot.Allocations), func(a kubelet.Allocation) bool {
		return !n.HasShares(&a) && !n.sharesByOthers(&a) || n.Snapshot.Gone(a.Pod) || !n.lost(&a)
	})
}

// sharesByOthers reports whether another device plugin allocated GPUs of this machine in a way that
// the kubelet does not compare with heddle's: as replicas of exclusive devices, or as a resource
// with another name.
func (n *Node) sharesByOthers(a *kubelet.Allocation) bool {
	kind := n.kindOf(a)
	return (kind == cdi.GPU || kind == "") && slices.ContainsFunc(a.IDs, func(id string) bool {
		_, is := n.Inventory.GPUs[inventory.DeviceOf(id)]
		return is && (kind == "" || inventory.IsReplica(id))
	})
}

// lost reports whether no entry has an allocation: it was lost, or another device plugin
// served the resource before and gave the devices out.
func (n *Node) lost(a *kubelet.Allocation) bool {
	if !a.Checkpointed {
		for _, e := range n.Entries {
			if e.Resource == a.Resource && slices.Equal(e.IDs, a.IDs) {
				return false
			}
		}
		return true
	}
	for _, text := range a.CDINames {
		if name, ok := cdi.ParseName(text); ok && name.Kind == cdi.SGPU && n.Entries[name.Device] != nil {
			return false
		}
	}
	return true
}

// live reports whether an entry's container exists: the kubelet has it, or has forgotten it, or it
// was decided after the snapshot. Without the checkpoint ordinary init containers are unknown, so
// all containers of existing pods count.
func (n *Node) live(e *Entry, holders kubelet.Holders) bool {
	switch {
	case n.Snapshot == nil:
		return !n.Gone[e.Device]
	case n.Uncertain[*e.Owner] != "", e.Decision > n.Since,
		n.Snapshot.CheckpointErr != nil && n.Snapshot.Active(e.Owner.Pod):
		return true
	case n.Snapshot.Gone(e.Owner.Pod):
		return false
	}
	return slices.ContainsFunc(e.IDs, func(id string) bool { return holders.Has(e.Owner.Pod, e.Resource, id) })
}

// checkExclusive returns why a container cannot have the exclusive GPUs that the
// kubelet gave it: another one still has them, or a share of them. HCAs can be
// shared, and are chosen when the container starts; so are shares.
func (n *Node) checkExclusive(held []kubelet.Allocation) error {
	var u *usage
	for i := range held {
		a := &held[i]
		if kind, err := KindOf(n.Inventory.Config, a.Resource); err != nil || kind != cdi.GPU {
			continue
		}
		if u == nil {
			u = n.usage()
		}
		for _, id := range a.IDs {
			if c := u.shareholder(cmp.Or(n.Inventory.Machine.ParentGPU(id), id), a.Pod); c != nil {
				return fmt.Errorf("%s %s is shared by %s", a.Resource, id, c)
			}
			if c := n.claimOf(cmp.Or(n.Inventory.Machine.ParentGPU(id), id)); c != nil {
				return fmt.Errorf("%s %s is held by %s", a.Resource, id, c)
			}
			if err := n.checkEntries(a, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkEntries returns why a device of an allocation may be another pod's: an
// entry names it, and the kubelet does not know that pod.
func (n *Node) checkEntries(a *kubelet.Allocation, id string) error {
	for _, e := range n.Entries {
		if e.Resource != a.Resource || e.Owner == nil || e.Owner.Pod.Same(a.Pod) || !slices.Contains(e.IDs, id) {
			continue
		}
		if reason := n.Uncertain[*e.Owner]; reason != "" {
			return fmt.Errorf("%s %s may be in use by %s: %s", a.Resource, id, e.Owner, reason)
		}
	}
	return nil
}
