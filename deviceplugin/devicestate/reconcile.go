package devicestate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/checkpoint"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Kinds of [Drift].
const (
	// DriftRecord: a container had shares and no entry, and got one.
	DriftRecord = "record"
	// DriftLost: a container has shares, and the kubelet has forgotten its
	// devices. They stay its own.
	DriftLost = "lost"
	// DriftOvercommit: containers have more of a GPU than there is, because
	// the GPU or the configuration changed. No new pod gets it.
	DriftOvercommit = "overcommit"
	// DriftUnrecorded: a container has shares, and neither an entry nor a CDI
	// spec is left of it.
	DriftUnrecorded = "unrecorded"
	// DriftAnnotation: a pod's annotation was not what its containers have, and was
	// corrected.
	DriftAnnotation = "annotation"
)

// Drift is a difference between what is and what should be.
type Drift struct{ Kind, Message string }

// Usage is which shares containers have.
type Usage struct {
	// GPUs are the shared ones with all that is taken.
	GPUs []quota.GPU
	// Drifts are the differences that are new since the last call.
	Drifts []Drift
	// Incomplete: the kubelet's checkpoint or the pods of containers without an
	// entry are not known. Containers that are not known to have shares may have
	// some.
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
	s.detectForgotten(ctx, seen)
	s.rejections.keep(seen.Holds)
	if seen.CheckpointErr == nil && len(s.expire(seen, liveDevices(seen))) > 0 {
		s.changed.Notify()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	node := s.nodeLocked(seen)
	u := &Usage{
		GPUs: node.SharedGPUs(), Drifts: s.drifts, Incomplete: seen.CheckpointErr != nil || len(seen.unknown) > 0,
	}
	s.drifts = nil
	drifting := lastingDrifts(node, u.GPUs)
	for d := range drifting {
		if !s.drifting[d] {
			u.Drifts = append(u.Drifts, d)
		}
	}
	s.drifting = drifting
	slices.SortFunc(u.Drifts, func(x, y Drift) int { return strings.Compare(x.Kind+x.Message, y.Kind+y.Message) })
	return u, nil
}

// lastingDrifts are the differences that last.
func lastingDrifts(node *allocate.Node, gpus []quota.GPU) map[Drift]bool {
	drifting := make(map[Drift]bool)
	for i := range gpus {
		if message := overcommitted(&gpus[i]); message != "" {
			drifting[Drift{DriftOvercommit, message}] = true
		}
	}
	for _, e := range node.Entries {
		if e.Kind == cdi.SGPU && e.Owner != nil && node.Forgotten[*e.Owner] {
			drifting[Drift{DriftLost, fmt.Sprintf("the kubelet has forgotten the shares of %s", e.Owner)}] = true
		}
	}
	return drifting
}

// overcommitted is what is too much on a GPU.
func overcommitted(g *quota.GPU) string {
	switch {
	case g.VCore > quota.Whole:
		return fmt.Sprintf("GPU %d (%s): its consumers have %d %% of its compute", g.Index, g.UUID, g.VCore)
	case g.UsedMiB > g.MemoryMiB:
		return fmt.Sprintf("GPU %d (%s): its consumers have %d MiB of %d", g.Index, g.UUID, g.UsedMiB, g.MemoryMiB)
	case g.Consumers > g.Slots:
		return fmt.Sprintf("GPU %d (%s): %d consumers on %d slots", g.Index, g.UUID, g.Consumers, g.Slots)
	}
	return ""
}

// restore makes up for entries of shares that were lost: removed, or not parsed.
// Without them their GPUs would be given out again. It takes them from the CDI
// specs, and where those are lost too, keeps the GPUs out of use that the
// containers may have.
func (s *State) restore(seen *observation) {
	s.mu.Lock()
	lost := s.nodeLocked(seen).Lost()
	s.mu.Unlock()
	for _, e := range lost {
		shares, err := s.cdi.ReadShares(e.Name())
		if err == nil && len(shares.Shares) != len(e.IDs) {
			err = fmt.Errorf("%d shares for %d device IDs", len(shares.Shares), len(e.IDs))
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			s.options.Log.Warn("CDI spec is unreadable", "device", e.Device, "err", err)
		default:
			e.Shares, e.Policy, e.By = shares.Shares, shares.Policy, shares.By
			e.Phase, e.RunAs, e.Enforced = shares.Phase, shares.RunAs, shares.Enforced
			s.restoreEntry(e)
		}
	}
	s.recover(seen)
}

// restoreEntry adds an entry that was lost.
func (s *State) restoreEntry(e *checkpoint.Entry) {
	e.Created = s.options.Now().UTC()
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

// recover finds the containers with shares of which neither an entry nor a spec
// is left, and forgets those that are gone or have an entry again.
func (s *State) recover(seen *observation) {
	s.mu.Lock()
	s.recovered = s.nodeLocked(seen).StillRecovered()
	unrecorded := s.nodeLocked(seen).Unrecorded()
	s.mu.Unlock()
	if s.pods.api == nil {
		return
	}
	for i := range unrecorded {
		a := &unrecorded[i]
		pod, complete := s.pods.api.Watched(a.Pod)
		if pod == nil {
			if !complete {
				seen.unknown = append(seen.unknown, a.Container)
			}
			continue
		}
		s.mu.Lock()
		r, ok := s.nodeLocked(seen).Recover(a, pod)
		if ok && !slices.ContainsFunc(s.recovered, func(x allocate.Recovered) bool { return x.Same(r.Container) }) {
			s.recovered = append(slices.Clone(s.recovered), r)
			s.drifts = append(s.drifts, Drift{DriftUnrecorded, r.String()})
			s.changed.Notify()
		}
		s.mu.Unlock()
	}
}
