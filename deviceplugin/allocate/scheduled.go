package allocate

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/hami"
)

// scheduled are the GPUs that a scheduler chose for a container, and which
// scheduler; none if none did. An annotation is a request: whether its GPUs are
// there and have room is checked as for any other choice. These are rejected,
// since their pod was scheduled by them:
//
//   - what does not parse, or another version;
//   - an allocation of another node: the pod was bound elsewhere after all;
//   - no entry for a container that requests shares, more or fewer GPUs than
//     it requests, one GPU twice;
//   - another share than it requests: the limits are the pod's, the GPUs the
//     scheduler's.
//
// One that was written after the container got its shares is not read.
func (n *Node) scheduled(r *shareRequest, pod *corev1.Pod) (uuids []string, by string, err error) {
	text, written := pod.Annotations[wellknown.SGPUAllocation]
	if !written {
		return n.scheduledByHAMi(r, pod)
	}
	chosen, err := allocation.ParseAllocation(text)
	if err != nil {
		return nil, "", r.reject(RejectedAllocation, "annotation %s: %s", wellknown.SGPUAllocation, err)
	}
	if chosen.Node != n.Name {
		return nil, "", r.reject(RejectedAllocation, "annotation %s is for node %s, and this is %s",
			wellknown.SGPUAllocation, chosen.Node, n.Name)
	}
	shares := chosen.Containers[r.container.Name]
	if len(shares) != r.GPUs {
		return nil, "", r.reject(RejectedAllocation, "annotation %s has %d GPUs for the container, which requests %d",
			wellknown.SGPUAllocation, len(shares), r.GPUs)
	}
	for i := range shares {
		if !n.agrees(&shares[i], r) {
			return nil, "", r.reject(RejectedAllocation,
				"annotation %s gives vcore %d and %d MiB of GPU %s, and the container requests others",
				wellknown.SGPUAllocation, shares[i].VCore, shares[i].MemoryMiB, shares[i].UUID)
		}
		uuids = append(uuids, shares[i].UUID)
	}
	return uuids, allocation.ByScheduler, nil
}

// agrees reports whether a share is what the container requests of its GPU. A GPU
// that this node does not share is rejected later.
func (n *Node) agrees(share *allocation.Share, r *shareRequest) bool {
	for i := range n.Inventory.Shared {
		if g := &n.Inventory.Shared[i]; g.UUID == share.UUID {
			return g.Share(&r.Request) == *share
		}
	}
	return true
}

// scheduledByHAMi are the GPUs that HAMi chose.
func (n *Node) scheduledByHAMi(r *shareRequest, pod *corev1.Pod) (uuids []string, by string, err error) {
	c := n.Inventory.Config.SGPU.HAMi
	if !c.Enabled {
		return nil, "", nil
	}
	shares, err := hami.Choice(pod, r.container.Name, &r.Request, hami.Rules{
		Node: n.Name, SchedulerName: c.SchedulerName,
		Card: func(uuid string) (memoryMiB int64, known bool) {
			for i := range n.Inventory.Machine.GPUs {
				if g := &n.Inventory.Machine.GPUs[i]; g.UUID == uuid {
					return g.MemoryMiB, true
				}
			}
			return 0, false
		},
	})
	if rejected, ok := errors.AsType[*hami.RejectedError](err); ok && rejected.Reason == hami.Absent {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", r.reject(RejectedAllocation, "%s", err)
	}
	for _, share := range shares {
		uuids = append(uuids, share.UUID)
	}
	return uuids, allocation.ByHAMi, nil
}
