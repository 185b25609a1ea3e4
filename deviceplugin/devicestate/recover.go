package devicestate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"time"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/checkpoint"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// restore makes up for entries of shares that were lost: removed, or not parsed.
// Without them their GPUs would be allocated again. It takes them from the CDI
// specs. Where those are lost too, the GPUs that the containers' device IDs name
// stay out of use until their pods are gone.
func (s *State) restore(seen *observation) {
	s.mu.Lock()
	// Who may have forgotten what does not matter here, and takes time to find.
	node := allocate.Node{Inventory: s.inventory.Load(), Snapshot: seen.Snapshot, Entries: s.entries}
	lost := node.Lost()
	s.mu.Unlock()
	unrecorded := make(map[kubelet.Container][]kubelet.Allocation)
	for i := range lost {
		a := &lost[i]
		if s.restoreEntries(a) || s.pods.isGone(a.Pod) {
			continue
		}
		if pod, _ := s.api.Watched(a.Pod); pod != nil {
			a.Namespace, a.Pod.Name = pod.Namespace, pod.Name
		}
		if !seen.Gone(a.Pod) {
			unrecorded[a.Container] = append(unrecorded[a.Container], *a)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries { // Others may have started meanwhile.
		maps.DeleteFunc(unrecorded, func(c kubelet.Container, _ []kubelet.Allocation) bool { return e.HasShares(c) })
	}
	before := len(s.unrecordedLocked())
	maps.DeleteFunc(s.uncertain, func(_ kubelet.Container, u uncertain) bool { return u.unrecorded != nil })
	for c, all := range unrecorded {
		s.uncertain[c] = uncertain{since: s.options.Now(), reported: true, unrecorded: all}
	}
	if len(s.unrecordedLocked()) != before {
		s.changed.Notify()
	}
}

// restoreEntries makes the entries of an allocation again from its CDI specs, and
// reports whether there was one. A container that has not started has no spec.
func (s *State) restoreEntries(a *kubelet.Allocation) (restored bool) {
	for _, text := range a.CDINames {
		name, ok := cdi.ParseName(text)
		if !ok || name.Kind != cdi.SGPU || !name.MadeFor(a.Resource, a.IDs) {
			continue
		}
		sharing, err := s.cdi.ReadSharing(name)
		if err == nil && len(sharing.Shares) != len(a.IDs) {
			err = fmt.Errorf("%d shares for %d device IDs", len(sharing.Shares), len(a.IDs))
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			s.options.Log.Warn("CDI spec is unreadable", "device", name.Device, "err", err)
		default:
			restored = true
			s.restoreEntry(&checkpoint.Entry{
				Kind: name.Kind, Device: name.Device, Resource: a.Resource, IDs: a.IDs, Created: s.options.Now().UTC(),
				Owner: &a.Container, Sharing: *sharing,
			})
		}
	}
	return restored
}

// restoreEntry adds an entry that was lost.
func (s *State) restoreEntry(e *checkpoint.Entry) {
	s.mu.Lock()
	if s.entries[e.Device] != nil {
		s.mu.Unlock()
		return
	}
	s.entries[e.Device] = e
	s.drifts[Drift{DriftRecord, fmt.Sprintf(
		"the checkpoint entry of %s was lost and is restored from its CDI spec", e.Owner)}] = false
	s.mu.Unlock()
	if err := s.checkpoint.Write(e); err != nil {
		s.options.Log.Warn("restored checkpoint entry is not on disk yet", "device", e.Device, "err", err)
	}
	s.changed.Notify()
}

// Forgotten are the device IDs of a resource that running containers have and
// that the kubelet takes for free, because it lost its checkpoint; each with who
// has it. The kubelet gives them to the next pod that asks. While a kubelet starts
// and it is not known yet, they are all that were given to pods that are not known
// to be gone.
func (s *State) Forgotten(resource string) map[string]string {
	starting := s.kubelet.Starting()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deviceIDsLocked(resource, s.uncertainLocked(starting))
}

// uncertain is a container whose devices stay out of use until its pod is gone:
// the kubelet, or the checkpoint, has lost what it has.
type uncertain struct {
	since time.Time
	// reported: its Event was made. A kubelet that rejects a pod knows the pod for a
	// moment without its devices, which is not worth one.
	reported bool
	// unrecorded are the allocations of shares without an entry and a CDI spec; none
	// of a container with entries, which the kubelet has forgotten.
	unrecorded []kubelet.Allocation
}

// Reasons of [allocate.Node.Uncertain].
const (
	forgottenByKubelet = "the kubelet has forgotten its devices; delete that pod"
	kubeletStarts      = "the kubelet has just started"
)

// uncertainLocked are the containers with entries that the kubelet has forgotten
// or, while it starts, may have: those of pods that are not known to be gone. The
// caller holds mu.
func (s *State) uncertainLocked(starting bool) map[kubelet.Container]string {
	all := make(map[kubelet.Container]string, len(s.uncertain))
	if starting {
		for _, e := range s.entries {
			if e.Owner != nil && !s.pods.isGone(e.Owner.Pod) {
				all[*e.Owner] = kubeletStarts
			}
		}
	}
	for c, u := range s.uncertain {
		if u.unrecorded == nil {
			all[c] = forgottenByKubelet
		}
	}
	return all
}

// unrecordedLocked are the allocations without an entry. The caller holds mu.
func (s *State) unrecordedLocked() []kubelet.Allocation {
	var all []kubelet.Allocation
	for _, u := range s.uncertain {
		all = append(all, u.unrecorded...)
	}
	return all
}

// deviceIDsLocked are those of a resource that some containers have, each with who
// has it. The caller holds mu.
func (s *State) deviceIDsLocked(resource string, some map[kubelet.Container]string) map[string]string {
	ids := make(map[string]string)
	for _, e := range s.entries {
		if e.Resource == resource && e.Owner != nil && some[*e.Owner] != "" {
			for _, id := range e.IDs {
				ids[id] = e.Owner.String()
			}
		}
	}
	return ids
}

// detectForgotten finds the containers that were prepared, that have their pod, and
// of which the kubelet knows no devices: its checkpoint was lost. It warns of those
// that stay so.
func (s *State) detectForgotten(ctx context.Context, seen *observation) {
	lacks := seen.Forgotten()
	s.mu.Lock()
	found := make(map[kubelet.Container]bool)
	for _, e := range s.entries {
		if e.Owner == nil || !lacks(*e.Owner) || e.Decision > seen.since {
			continue
		}
		if _, known := s.uncertain[*e.Owner]; !known {
			found[*e.Owner] = true
		}
	}
	maps.DeleteFunc(s.uncertain, func(c kubelet.Container, u uncertain) bool { return u.unrecorded == nil && !lacks(c) })
	s.mu.Unlock()
	for c := range found {
		if !s.pods.exists(ctx, c.Pod) {
			delete(found, c) // Another pod has its name.
		}
	}
	s.mu.Lock()
	var lasting []kubelet.Container
	for c := range found {
		if _, known := s.uncertain[c]; !known {
			s.uncertain[c] = uncertain{since: s.options.Now()}
		}
	}
	for c, u := range s.uncertain {
		if !u.reported && s.options.Now().Sub(u.since) >= forgottenFor {
			u.reported = true
			s.uncertain[c] = u
			lasting = append(lasting, c)
		}
	}
	s.mu.Unlock()
	for _, c := range lasting {
		s.options.Log.Warn("devices lost", "pod", c.Pod.String(), "container", c.Name)
		s.api.WarnPod(c.Pod, wellknown.EventDevicesLost, fmt.Sprintf(
			"the kubelet has lost the devices of container %s: it runs on, and "+
				"cannot start again; delete the pod to have it made again", c.Name))
	}
}
