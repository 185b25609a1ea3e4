package devicestate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// findUnrecorded finds allocations of shares without an entry: entries were removed
// or damaged, or another device plugin made the allocation. Without the entry it is
// not known which GPUs the container has: those that its device IDs name, or those in
// its pod's annotation. All of them stay out of use until the pod is gone, or the
// container starts again and gets an entry.
func (s *State) findUnrecorded(seen *observation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Who may have forgotten what does not matter here, and takes time to find.
	node := allocate.Node{Inventory: s.inventory.Load(), Snapshot: seen.Snapshot, Entries: s.entries}
	unrecorded := make(map[kubelet.Container][]kubelet.Allocation)
	for _, a := range node.Unaccounted() {
		if s.pods.isGone(a.Pod) {
			continue
		}
		if pod, _ := s.api.Watched(a.Pod); pod != nil {
			a.Namespace, a.Pod.Name = pod.Namespace, pod.Name
			a.IDs = slices.Concat(a.IDs, boundGPUs(pod, a.Name))
		}
		if !seen.Gone(a.Pod) {
			unrecorded[a.Container] = append(unrecorded[a.Container], a)
		}
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

// boundGPUs returns the shared GPUs of a container by its pod's annotation, which this
// node wrote and others may have changed.
func boundGPUs(pod *corev1.Pod, container string) []string {
	bound, err := allocation.ParseBound(pod.Annotations[wellknown.SGPUBound])
	if err != nil {
		return nil
	}
	var uuids []string
	for _, share := range bound.Containers[container].Shares {
		uuids = append(uuids, share.UUID)
	}
	return uuids
}

// Forgotten returns the device IDs of a resource that running containers have and
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

// uncertain is a container with devices that stay out of use until its pod is gone: the kubelet or
// the checkpoint has lost its allocation.
type uncertain struct {
	since time.Time
	// reported: its Event was made. A kubelet that rejects a pod knows the pod for a
	// moment without its devices, which is not worth one.
	reported bool
	// unrecorded are the allocations of shares without an entry; none
	// of a container with entries, which the kubelet has forgotten.
	unrecorded []kubelet.Allocation
}

// Reasons of [allocate.Node.Uncertain].
const (
	forgottenByKubelet = "the kubelet has forgotten its devices; delete that pod"
	kubeletStarts      = "the kubelet has just started"
)

// uncertainLocked returns the containers with entries that the kubelet has forgotten or, while it
// starts, may have forgotten, unless their pod is known to be gone. The caller holds mu.
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

// unrecordedLocked returns the allocations without an entry. The caller holds mu.
func (s *State) unrecordedLocked() []kubelet.Allocation {
	var all []kubelet.Allocation
	for _, u := range s.uncertain {
		all = append(all, u.unrecorded...)
	}
	return all
}

// deviceIDsLocked returns the device IDs of a resource that some containers have, with their
// holders. The caller holds mu.
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
// and that have no devices by the kubelet: its checkpoint was lost. It warns of those
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
