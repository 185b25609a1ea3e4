package devicestate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/sharing/quota"
)

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

// findUncertainLocked finds the containers with devices that only one side knows. The caller holds mu.
//
//   - Shares without an entry: entries were removed or damaged, or another device plugin made the
//     allocation. Which GPUs the container has is not known without it: those that its device IDs
//     name, or those in its pod's annotation.
//   - Entries of a container that has its pod, and no devices by the kubelet: its checkpoint was
//     lost. Where that lasts, the pod gets an Event.
func (s *State) findUncertainLocked(seen *observation) {
	found := make(map[kubelet.Container]uncertain)
	// Who may have forgotten what does not matter here, and takes time to find.
	node := allocate.Node{Inventory: s.inventory.Load(), Snapshot: seen.Snapshot, Entries: s.entries}
	for _, a := range node.Unaccounted() {
		if s.isGone(a.Pod) {
			continue
		}
		if pod, _ := s.api.Watched(a.Pod); pod != nil {
			a.Namespace, a.Pod.Name = pod.Namespace, pod.Name
			a.IDs = slices.Concat(a.IDs, boundGPUs(pod, a.Name))
		}
		if !seen.Gone(a.Pod) {
			found[a.Container] = uncertain{unrecorded: append(found[a.Container].unrecorded, a)}
		}
	}
	lacks := seen.Forgotten()
	for _, e := range s.entries {
		if e.Owner != nil && lacks(*e.Owner) && e.Decision <= seen.since && !s.isGone(e.Owner.Pod) {
			found[*e.Owner] = uncertain{}
		}
	}
	now, before := s.options.Now(), len(s.unrecordedLocked())
	for c, u := range found {
		u.since = now
		if old, known := s.uncertain[c]; known {
			u.since, u.reported = old.since, old.reported
		}
		if u.unrecorded == nil && !u.reported && now.Sub(u.since) >= forgottenFor {
			u.reported = true
			s.options.Log.Warn("devices lost", "pod", c.Pod.String(), "container", c.Name)
			s.api.WarnPod(c.Pod, wellknown.EventDevicesLost, fmt.Sprintf(
				"the kubelet has lost the devices of container %s: it runs on, and "+
					"cannot start again; delete the pod to have it made again", c.Name))
		}
		found[c] = u
	}
	s.uncertain = found
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
	some, ids := s.uncertainLocked(starting), make(map[string]string)
	for _, e := range s.entries {
		if e.Resource == resource && e.Owner != nil && some[*e.Owner] != "" {
			for _, id := range e.IDs {
				ids[id] = e.Owner.String()
			}
		}
	}
	return ids
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
			if e.Owner != nil && !s.isGone(e.Owner.Pod) {
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

// Kinds of [Drift].
const (
	// DriftOvercommit: containers have more of a GPU than its capacity, because the GPU or the
	// configuration changed. No new pod gets it.
	DriftOvercommit = "overcommit"
	// DriftUnrecorded: a container has shares without an entry.
	DriftUnrecorded = "unrecorded"
)

// Drift describes a difference between actual and desired state.
type Drift struct{ Kind, Message string }

// Usage holds the shares of containers.
type Usage struct {
	// GPUs are the shared ones with all that is taken.
	GPUs []quota.GPU
	// Drifts are the differences that are new since the last call.
	Drifts []Drift
	// Incomplete: the kubelet's checkpoint is not known. Containers that are not
	// known to have shares may have some.
	Incomplete bool
}

// Reconcile compares what the kubelet has with the entries.
func (s *State) Reconcile(ctx context.Context) (*Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	seen, err := s.observe(ctx)
	if err != nil {
		return nil, err
	}
	if seen.CheckpointErr == nil && len(s.expire(seen, liveDevices(seen))) > 0 {
		s.changed.Notify()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.rejected, func(p kubelet.Pod, _ report.Rejection) bool { return !seen.Holds(p) })
	node := s.nodeLocked(seen)
	u := &Usage{GPUs: node.SharedGPUs(), Incomplete: seen.CheckpointErr != nil}
	now := s.lastingDriftsLocked(u.GPUs, seen.Starting())
	for d := range now {
		if !s.drifts[d] {
			u.Drifts = append(u.Drifts, d)
		}
	}
	s.drifts = now
	slices.SortFunc(u.Drifts, func(x, y Drift) int { return strings.Compare(x.Kind+x.Message, y.Kind+y.Message) })
	return u, nil
}

// lastingDriftsLocked returns the differences that last. While a kubelet starts, shares of pods
// that may be gone count beside shares of their successors, so it reports no overcommitted GPU. The
// caller holds mu.
func (s *State) lastingDriftsLocked(gpus []quota.GPU, starting bool) map[Drift]bool {
	drifting := make(map[Drift]bool)
	for i := range gpus {
		if message := overcommitted(&gpus[i]); message != "" && !starting {
			drifting[Drift{DriftOvercommit, message}] = true
		}
	}
	for _, a := range s.unrecordedLocked() {
		if a.Pod.Name == "" { // In the kubelet's checkpoint alone, perhaps gone: the pods of the node are not known yet.
			continue
		}
		drifting[Drift{DriftUnrecorded, fmt.Sprintf("%s has a share without a checkpoint entry, which was lost or is "+
			"another device plugin's; no other pod gets the %d GPUs that it may have until the pod is gone",
			a.Container, len(inventory.DevicesOf(a.IDs)))}] = true
	}
	return drifting
}

// overcommitted describes what exceeds a GPU; empty if nothing does.
func overcommitted(g *quota.GPU) string {
	switch {
	case g.VCore > quota.Whole:
		return fmt.Sprintf("GPU %d (%s): its consumers have %d %% of its compute", g.Index, g.UUID, g.VCore)
	case g.UsedMiB > g.Room():
		return fmt.Sprintf("GPU %d (%s): its consumers have %d MiB of %d", g.Index, g.UUID, g.UsedMiB, g.Room())
	case g.Consumers > g.Slots:
		return fmt.Sprintf("GPU %d (%s): %d consumers on %d slots", g.Index, g.UUID, g.Consumers, g.Slots)
	}
	return ""
}
