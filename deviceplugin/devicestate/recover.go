package devicestate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/checkpoint"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// restore makes up for entries of shares that were lost: removed, or not parsed.
// Without them their GPUs would be given out again. It takes them from the CDI
// specs. Where those are lost too, the GPUs that the containers' device IDs name
// stay out of use until their pods are gone.
func (s *State) restore(seen *observation) {
	s.mu.Lock()
	// Who may have forgotten what does not matter here, and takes time to find.
	node := allocate.Node{Inventory: s.inventory.Load(), Snapshot: seen.Snapshot, Entries: s.entries}
	lost := node.Lost()
	s.mu.Unlock()
	var unrecorded []kubelet.Allocation
	for i := range lost {
		a := &lost[i]
		if s.restoreEntries(a) || s.pods.isGone(a.Pod) {
			continue
		}
		if pod, _ := s.api.Watched(a.Pod); pod != nil {
			a.Namespace, a.Pod.Name = pod.Namespace, pod.Name
		}
		if !seen.Gone(a.Pod) {
			unrecorded = append(unrecorded, *a)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries { // Others may have started meanwhile.
		unrecorded = slices.DeleteFunc(unrecorded, func(a kubelet.Allocation) bool { return e.HasShares(a.Container) })
	}
	if len(unrecorded) != len(s.unrecorded) {
		s.changed.Notify()
	}
	s.unrecorded = unrecorded
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
	s.drifts = append(s.drifts, Drift{DriftRecord, fmt.Sprintf(
		"the checkpoint entry of %s was lost and is restored from its CDI spec", e.Owner)})
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
	return deviceIDs(s.entries, resource, s.forgotten, s.unsureLocked(starting))
}

// unsureLocked are the containers of which a kubelet that starts may have
// forgotten the devices: those of pods that are not known to be gone. It is for
// holders of mu.
func (s *State) unsureLocked(starting bool) map[kubelet.Container]bool {
	if !starting {
		return nil
	}
	unsure := make(map[kubelet.Container]bool, len(s.entries))
	for _, e := range s.entries {
		if e.Owner != nil && !s.pods.isGone(e.Owner.Pod) {
			unsure[*e.Owner] = true
		}
	}
	return unsure
}

// deviceIDs are those of a resource that some containers have, each with who has it.
func deviceIDs(
	entries map[string]*checkpoint.Entry, resource string, of ...map[kubelet.Container]bool,
) map[string]string {
	ids := make(map[string]string)
	for _, e := range entries {
		has := func(some map[kubelet.Container]bool) bool { return some[*e.Owner] }
		if e.Resource == resource && e.Owner != nil && slices.ContainsFunc(of, has) {
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
		if e.Owner != nil && lacks(*e.Owner) && !s.forgotten[*e.Owner] && e.Decision <= seen.since {
			found[*e.Owner] = true
		}
	}
	maps.DeleteFunc(s.forgotten, func(c kubelet.Container, _ bool) bool { return !lacks(c) })
	maps.DeleteFunc(s.unreported, func(c kubelet.Container, _ time.Time) bool { return !lacks(c) })
	s.mu.Unlock()
	for c := range found {
		if !s.pods.exists(ctx, c.Pod) {
			continue // Another pod has its name by now.
		}
		s.mu.Lock()
		if !s.forgotten[c] {
			s.forgotten[c], s.unreported[c] = true, s.options.Now()
		}
		s.mu.Unlock()
	}
	s.reportForgotten()
}

// reportForgotten makes the Event of containers whose devices have been forgotten for long
// enough.
func (s *State) reportForgotten() {
	s.mu.Lock()
	var lasting []kubelet.Container
	for c, since := range s.unreported {
		if s.options.Now().Sub(since) >= forgottenFor {
			lasting = append(lasting, c)
			delete(s.unreported, c)
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
