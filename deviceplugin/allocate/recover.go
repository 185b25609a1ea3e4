package allocate

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/checkpoint"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Recovered is a container with shares that has lost its checkpoint entry and its
// CDI spec, and the GPUs that it may have: no other pod gets them until the pod
// is gone, however much of them it has. When it starts again it is
// decided again, and is recovered no longer.
type Recovered struct {
	kubelet.Container
	GPUs []string
	// Shares are those that its pod's annotation names, for reports; none if it
	// names none.
	Shares     []allocation.Share
	Policy, By string
}

func (r *Recovered) reason() string {
	return "kept for " + r.Container.String() + ": its checkpoint entry is lost"
}

// String is for Events: what happened and the remedy.
func (r *Recovered) String() string {
	return fmt.Sprintf("the checkpoint entry and the CDI spec of %s were lost; no other pod gets the %d GPUs that it may "+
		"have until the pod is gone: delete the pod", r.Container, len(r.GPUs))
}

// Unrecorded are the allocations of shares that have neither an entry nor are
// recovered.
func (n *Node) Unrecorded() []kubelet.Allocation {
	var all []kubelet.Allocation
	for i := range n.Snapshot.Allocations {
		a := &n.Snapshot.Allocations[i]
		if n.HasShares(a) && n.unrecorded(a) && !n.recovered(a.Container) {
			all = append(all, *a)
		}
	}
	return all
}

// unrecorded reports whether names were given out for an allocation and none of
// them has an entry.
func (n *Node) unrecorded(a *kubelet.Allocation) bool {
	if !a.Checkpointed {
		for _, e := range n.Entries {
			if e.Resource == a.Resource && slices.Equal(e.IDs, a.IDs) {
				return false
			}
		}
		return true
	}
	named := false
	for _, text := range a.CDINames {
		if name, ok := cdi.ParseName(text); ok && name.Kind == cdi.SGPU {
			named = true
			if n.Entries[name.Device] != nil {
				return false
			}
		}
	}
	return named
}

func (n *Node) recovered(c kubelet.Container) bool {
	return slices.ContainsFunc(n.Recovered, func(r Recovered) bool { return r.Same(c) })
}

// StillRecovered are the recovered containers of which nothing better is known
// and that are not gone: they hold device IDs of shares by the kubelet, or a
// kubelet that has just started may not know them yet.
func (n *Node) StillRecovered() []Recovered {
	return slices.DeleteFunc(slices.Clone(n.Recovered), func(r Recovered) bool {
		if n.hasEntry(r.Container) || n.Snapshot.Gone(r.Pod) {
			return true
		}
		holds := func(a kubelet.Allocation) bool { return r.Same(a.Container) && n.HasShares(&a) }
		return !n.Snapshot.Starting() && (n.Snapshot.CheckpointErr == nil || !n.Snapshot.Active(r.Pod)) &&
			!slices.ContainsFunc(n.Snapshot.Allocations, holds)
	})
}

func (n *Node) hasEntry(c kubelet.Container) bool {
	for _, e := range n.Entries {
		if e.HasShares(c) {
			return true
		}
	}
	return false
}

// Recover finds out which GPUs the container of an unrecorded allocation may
// have. Its pod's annotation names them if it is there, and else its device IDs,
// which mostly name those that it has. ok is false if it has none: its pod has
// ended, or it has not started and gets another one. A user who may change the
// pod can write the annotation, so it only ever takes GPUs out of use, and not more
// than the container holds device IDs.
func (n *Node) Recover(a *kubelet.Allocation, pod *corev1.Pod) (r Recovered, ok bool) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return Recovered{}, false
	}
	r = Recovered{Container: a.Container}
	r.Namespace, r.Pod.Name, r.UID = pod.Namespace, pod.Name, cmp.Or(a.UID, string(pod.UID))
	if n.Snapshot.Gone(r.Pod) || n.hasEntry(r.Container) {
		return Recovered{}, false
	}
	n.readAnnotation(&r, pod, len(a.IDs))
	for _, share := range r.Shares {
		r.GPUs = append(r.GPUs, share.UUID)
	}
	if len(r.GPUs) > 0 {
		return r, true
	}
	for _, id := range a.IDs {
		r.GPUs = append(r.GPUs, gpuOf(id))
	}
	r.GPUs = kubelet.SortIDs(r.GPUs)
	return r, runs(pod, a.Name)
}

// readAnnotation takes the GPUs from the pod's annotation, as many as the
// container holds device IDs, and their amounts from its own limits.
func (n *Node) readAnnotation(r *Recovered, pod *corev1.Pod, count int) {
	bound, err := allocation.ParseBound(pod.Annotations[wellknown.SGPUBound])
	spec, _ := quota.ContainerOf(pod, r.Name)
	if err != nil || bound.Node != n.Name || len(bound.Containers[r.Name].Shares) != count || spec == nil {
		return
	}
	request, err := quota.ParseRequest(spec.Resources.Limits, pod.Annotations, n.Inventory.Config)
	if err != nil {
		return
	}
	for _, s := range bound.Containers[r.Name].Shares {
		gpu := quota.GPU{UUID: s.UUID, MemoryMiB: s.MemoryMiB}
		r.Shares = append(r.Shares, gpu.Share(&request))
	}
	r.Policy, r.By = string(request.Policy), bound.Containers[r.Name].By
}

// runs reports whether a container does, by its pod's status.
func runs(pod *corev1.Pod, container string) bool {
	for _, s := range slices.Concat(pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses) {
		if s.Name == container {
			return s.State.Running != nil
		}
	}
	return false
}

// Lost are entries without shares for the names of unrecorded allocations. What
// they stand for may be in their CDI specs.
func (n *Node) Lost() []*checkpoint.Entry {
	var all []*checkpoint.Entry
	for i := range n.Snapshot.Allocations {
		a := &n.Snapshot.Allocations[i]
		for _, text := range a.CDINames {
			name, ok := cdi.ParseName(text)
			if !ok || name.Kind != cdi.SGPU || n.Entries[name.Device] != nil || !name.MadeFor(a.Resource, a.IDs) {
				continue
			}
			all = append(all, &checkpoint.Entry{
				Kind: name.Kind, Device: name.Device, Resource: a.Resource, IDs: a.IDs, Owner: new(a.Container),
			})
		}
	}
	return all
}
