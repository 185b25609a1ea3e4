package devicestate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Kinds of [Drift].
const (
	// DriftLost: a container has shares, and the kubelet has forgotten its
	// devices. They stay its own.
	DriftLost = "lost"
	// DriftOvercommit: containers have more of a GPU than its capacity, because the GPU or the
	// configuration changed. No new pod gets it.
	DriftOvercommit = "overcommit"
	// DriftUnrecorded: a container has shares without an entry.
	DriftUnrecorded = "unrecorded"
	// DriftAnnotation: a pod's annotation was not what its containers have, and was
	// corrected.
	DriftAnnotation = "annotation"
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
	s.rejections.keep(seen.Snapshot)
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
		drifting[Drift{DriftUnrecorded, fmt.Sprintf("%s has a share without a checkpoint entry, which was lost or is "+
			"another device plugin's; no other pod gets the %d GPUs that it may have until the pod is gone",
			a.Container, len(inventory.DevicesOf(a.IDs)))}] = true
	}
	for _, e := range s.entries {
		if e.Kind != cdi.SGPU || e.Owner == nil {
			continue
		}
		if u, found := s.uncertain[*e.Owner]; found && u.unrecorded == nil && u.reported {
			drifting[Drift{DriftLost, fmt.Sprintf("the kubelet has forgotten the shares of %s", e.Owner)}] = true
		}
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
