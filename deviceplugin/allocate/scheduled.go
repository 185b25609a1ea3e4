package allocate

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Scheduled returns the GPUs of this node that a scheduler chose for a container, and the
// scheduler; empty if no scheduler did. An annotation is a request: its GPUs are checked for
// existence and room as any other choice. These are errors, since their pod was scheduled by them:
//
//   - what does not parse, or another version;
//   - an allocation of another node: the pod was bound elsewhere after all;
//   - no entry for a container that requests shares, more or fewer GPUs than
//     it requests, one GPU twice;
//   - another share than it requests: the limits are the pod's, the GPUs the
//     scheduler's;
//   - with HAMi on, one of a pod that neither scheduler had.
//
// One that was written after the container got its shares is not read. Where HAMi
// chose, r becomes what HAMi counts of it.
func Scheduled(
	pod *corev1.Pod, container string, r *quota.Request, node string, inv *inventory.Inventory,
) (uuids []string, by string, err error) {
	text, written := pod.Annotations[wellknown.SGPUAllocation]
	own, h := pod.Spec.SchedulerName == allocation.ByScheduler, inv.Config.SGPU.HAMi == config.HAMiOn
	switch {
	case !written, h && !own && pod.Spec.SchedulerName == hami.SchedulerName:
		return scheduledByHAMi(pod, container, r, node, inv)
	case h && !own:
		return nil, "", fmt.Errorf(
			"annotation %s is not believed: the pod's scheduler is %q, and HAMi counts this node's GPUs",
			wellknown.SGPUAllocation, pod.Spec.SchedulerName)
	}
	chosen, err := allocation.ParseAllocation(text)
	if err != nil {
		return nil, "", fmt.Errorf("annotation %s: %w", wellknown.SGPUAllocation, err)
	}
	if chosen.Node != node {
		return nil, "", fmt.Errorf("annotation %s is for node %s, and this is %s",
			wellknown.SGPUAllocation, chosen.Node, node)
	}
	shares := chosen.Containers[container]
	if len(shares) != r.GPUs {
		return nil, "", fmt.Errorf("annotation %s has %d GPUs for the container, which requests %d",
			wellknown.SGPUAllocation, len(shares), r.GPUs)
	}
	for i := range shares {
		if !agrees(&shares[i], r, inv) {
			return nil, "", fmt.Errorf("annotation %s gives vcore %d and %d MiB of GPU %s, and the container requests others",
				wellknown.SGPUAllocation, shares[i].VCore, shares[i].MemoryMiB, shares[i].UUID)
		}
		uuids = append(uuids, shares[i].UUID)
	}
	return uuids, allocation.ByScheduler, nil
}

// agrees reports whether a share equals the container's request for its GPU. A GPU
// that this node does not share is rejected later.
func agrees(share *allocation.Share, r *quota.Request, inv *inventory.Inventory) bool {
	for i := range inv.Shared {
		if g := &inv.Shared[i]; g.UUID == share.UUID {
			return g.Share(r) == *share
		}
	}
	return true
}

// Annotations returns the annotations by which a pod was scheduled.
func Annotations(pod *corev1.Pod, inv *inventory.Inventory) map[string]string {
	c := inv.Config
	if c.SGPU.HAMi != config.HAMiOn {
		return pod.Annotations
	}
	return hami.Annotations(pod, c.Domains)
}

// scheduledByHAMi returns the GPUs that HAMi chose.
func scheduledByHAMi(
	pod *corev1.Pod, container string, r *quota.Request, node string, inv *inventory.Inventory,
) (uuids []string, by string, err error) {
	if inv.Config.SGPU.HAMi != config.HAMiOn {
		return nil, "", nil
	}
	memory := map[string]int64{}
	for i := range inv.Machine.GPUs {
		memory[inv.Machine.GPUs[i].UUID] = inv.Machine.GPUs[i].MemoryMiB
	}
	uuids, counts, err := hami.Choice(pod, container, r, node, memory)
	if errors.Is(err, hami.ErrAbsent) {
		return nil, "", nil
	}
	*r = counts
	return uuids, allocation.ByHAMi, err
}
