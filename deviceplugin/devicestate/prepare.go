package devicestate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// prepareTimeout is less than the 30 s that the kubelet gives PreStartContainer,
// so that the kubelet's Event has the plugin's reason.
const prepareTimeout = 25 * time.Second

// Prepare decides what stands behind the CDI names of every container that holds
// exactly these IDs, for all its resources together, and puts the specs into
// the CDI directory. For a container that is prepared already it changes nothing
// but what its HCAs' state or its pod's environment changed. It implements
// PreStartContainer; an error keeps the container from starting, and the
// kubelet tries again.
func (s *State) Prepare(ctx context.Context, resource string, ids []string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, prepareTimeout,
		fmt.Errorf("no devices prepared for a container with %s in %v", resource, prepareTimeout))
	defer cancel()
	if _, err := allocate.KindOf(s.inventory.Load().Config, resource); err != nil && s.View().Resources()[resource] == "" {
		return err
	}
	ids = kubelet.SortIDs(ids)
	seen, err := s.observe(ctx)
	if err != nil {
		return fmt.Errorf("find the container of %d devices of %s: %w", len(ids), resource, err)
	}
	owners := seen.Owners(resource, ids)
	if len(owners) == 0 {
		err := fmt.Errorf("no container holds exactly the %d given devices of %s", len(ids), resource)
		return errors.Join(err, seen.CheckpointErr)
	}
	var errs []error
	for i := range owners {
		if err := s.prepare(ctx, owners[i].Container, seen); err != nil {
			errs = append(errs, fmt.Errorf("prepare devices of %s: %w", owners[i].Container, err))
		}
	}
	return errors.Join(errs...)
}

// prepare prepares one container.
func (s *State) prepare(ctx context.Context, c kubelet.Container, seen *observation) error {
	held := seen.Of(c)
	pod := s.readPod(ctx, c.Pod)
	if pod != nil {
		// The checkpoint alone knows no names, and PodResources no UIDs: without one, an
		// earlier pod of this name would be this one.
		if c.Pod.Name == "" {
			c.Namespace, c.Pod.Name = pod.Namespace, pod.Name
		}
		c.UID = cmp.Or(c.UID, pod.Annotations[corev1.MirrorPodAnnotationKey], string(pod.UID))
		for i := range held {
			held[i].Container = c
		}
	}
	key := c.UID + c.String()
	s.starting.LockKey(key)
	defer func() { _ = s.starting.UnlockKey(key) }()
	// The caller may be a kubelet that is gone, and the answer the next one's.
	if err := context.Cause(ctx); err != nil {
		return err
	}
	shares, result, err := s.decide(c, held, pod, seen)
	if err == nil {
		err = s.awaitGPUs(ctx, c, result.Devices.GPUs, seen)
	}
	if err != nil || result.HasShares() || s.waited(c) {
		s.noteRejection(c.Pod, err)
	}
	// The container that starts is on disk before its spec is. Its pod's others may
	// start after the next restart of the plugin.
	for _, e := range shares {
		if e.Owner.Name != c.Name {
			err = errors.Join(err, s.checkpoint.write(e))
		}
	}
	if err != nil {
		return err
	}
	for _, w := range result.Warnings {
		s.options.Log.Warn("devices are not as requested", "pod", c.Pod.String(), "container", c.Name,
			"reason", w.Reason, "message", w.Message)
		s.api.WarnPod(c.Pod, w.Reason, w.Message)
	}
	if err := s.write(ctx, result, pod); err != nil {
		return err
	}
	if result.Changed || len(shares) > 0 {
		s.options.Log.Info("prepared", "pod", c.Pod.String(), "container", c.Name,
			"gpus", len(result.Devices.GPUs), "hcas", len(result.Devices.HCAs))
		s.changed.Notify()
	}
	return nil
}

// decide finds or makes the allocation of a container for all its resources, and remembers it. Only
// files remain to be written. Shares are decided only here: one pod after the other, by the
// kubelet's state and the decisions since.
func (s *State) decide(
	c kubelet.Container, held []kubelet.Allocation, pod *corev1.Pod, seen *observation,
) (shares []*allocate.Entry, result *allocate.Result, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shares, result, err = s.nodeLocked(seen).Decide(c, held, pod)
	s.applyLocked(shares...)
	if err != nil {
		return shares, nil, err
	}
	for i := range result.Grants {
		s.applyLocked(result.Grants[i].Entry)
	}
	return shares, result, nil
}

// write brings the files of one container up to date. For each of its names: what
// the container will see, then the entry, then the spec. A spec in place therefore
// has all that it refers to, and an entry behind it.
func (s *State) write(ctx context.Context, result *allocate.Result, pod *corev1.Pod) error {
	edits := make([][]*specs.ContainerEdits, len(result.Grants))
	for i := range result.Grants {
		var err error
		if edits[i], err = s.shareEdits(ctx, &result.Grants[i]); err != nil {
			return fmt.Errorf("shares of container %s: %w", result.Devices.Container, err)
		}
	}
	devices, err := result.Devices.File()
	if err != nil {
		return err
	}
	env := result.Devices.Env(pod, s.options.GPUEnv)
	if hook := cdi.NCCLHook(s.options.Hook, env); hook != nil && len(edits) > 0 {
		edits[0] = append(edits[0], hook) // A container has the specs of all its names.
	}
	switch {
	case len(result.Channels) > 0 && len(edits) == 0:
		return errors.New("IMEX channels come by CDI, and the container's GPUs were allocated without it")
	case len(result.Channels) > 0:
		edits[0] = append(edits[0], &specs.ContainerEdits{DeviceNodes: result.Channels})
	}
	s.files.RLock()
	defer s.files.RUnlock()
	for i := range result.Grants {
		e := result.Grants[i].Entry
		err := s.cdi.WriteDevices(e.Name(), devices)
		if err == nil {
			err = s.checkpoint.write(e)
		}
		s.problems.Note(problemState, err)
		if err != nil {
			return err
		}
		err = s.cdi.WriteSpec(e.Name(), env, result.Grants[i].Nodes, edits[i])
		s.problems.Note(problemCDI, err)
		if err != nil {
			return err
		}
	}
	return nil
}

// shareEdits returns the edits for the GPUs and the limits of shares; none for other
// resources. It notes in the entry what the limits are enforced by.
func (s *State) shareEdits(ctx context.Context, g *allocate.Grant) ([]*specs.ContainerEdits, error) {
	if g.Entry.Kind != cdi.SGPU {
		return nil, nil
	}
	var all []*specs.ContainerEdits
	inv := s.inventory.Load()
	for _, share := range g.Entry.Shares {
		gpu := inv.GPUs[share.UUID]
		if gpu.CDIError != "" {
			return nil, errors.New(gpu.CDIError)
		}
		if gpu.CDIEdits != nil {
			all = append(all, gpu.CDIEdits)
		}
	}
	if s.options.Limiter != nil {
		l := limitOf(g.Entry, inv)
		edits, by, err := s.options.Limiter.Edits(ctx, &l)
		if err != nil {
			return nil, fmt.Errorf("limits: %w", err)
		}
		all = append(all, edits)
		if g.Entry.Enforced != by {
			e := *g.Entry
			e.Enforced, g.Entry = by, &e
			s.mu.Lock()
			s.entries[e.Device] = g.Entry
			s.mu.Unlock()
		}
	}
	shares, err := json.Marshal(&g.Entry.Sharing)
	return append(all, &specs.ContainerEdits{Env: []string{cdi.EnvShares + "=" + string(shares)}}), err
}

// limitOf returns the limit of an entry with shares.
func limitOf(e *allocate.Entry, inv *inventory.Inventory) enforce.Limit {
	l := enforce.Limit{
		Pod: e.Owner.UID, Container: e.Owner.Name, Policy: quota.Policy(e.Policy), UID: e.RunAs, By: e.Enforced,
		Priority: e.Priority,
	}
	for _, share := range e.Shares {
		gpu := enforce.GPU{Share: share, Index: -1}
		for i := range inv.Machine.GPUs {
			if g := &inv.Machine.GPUs[i]; g.UUID == share.UUID {
				gpu.Index, gpu.TotalMiB, gpu.PCI, gpu.Maker = g.Index, g.MemoryMiB, g.PCI, g.Vendor
			}
		}
		l.GPUs = append(l.GPUs, gpu)
	}
	slices.SortStableFunc(l.GPUs, func(x, y enforce.GPU) int {
		return cmp.Or(machine.ComparePCI(x.PCI, y.PCI), cmp.Compare(x.Share.UUID, y.Share.UUID))
	})
	return l
}
