package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// AdmitPod makes a pod active and allocates for its containers, init
// containers first, a container's resources in random order (the kubelet
// ranges over a map). On error the pod is rejected: it fails for good
// (UnexpectedAdmissionError), and what it already got is freed later.
func (k *Kubelet) AdmitPod(ctx context.Context, pod Pod) error {
	k.admitting.Lock()
	defer k.admitting.Unlock()
	k.Add(pod)
	for _, app := range []bool{false, true} {
		for _, c := range pod.Containers {
			if (c.Kind == App) != app {
				continue
			}
			if err := k.allocateContainer(ctx, pod, c); err != nil {
				k.Delete(pod.Namespace, pod.Name)
				return fmt.Errorf("admit %s/%s: %w", pod.Namespace, pod.Name, err)
			}
		}
	}
	return nil
}

// Admit is AdmitPod for a pod of one container that asks for n devices of one
// resource, in the namespace "default", with the UID "uid-<pod>". It returns
// the device IDs, sorted.
func (k *Kubelet) Admit(ctx context.Context, pod, container, resource string, n int) ([]string, error) {
	p := Pod{
		Namespace: "default", Name: pod, UID: "uid-" + pod,
		Containers: []Container{{Name: container, Limits: map[string]int{resource: n}}},
	}
	if err := k.AdmitPod(ctx, p); err != nil {
		return nil, err
	}
	return k.Held(p.UID, container, resource), nil
}

// Held lists the device IDs that a container holds, sorted.
func (k *Kubelet) Held(uid, container, resource string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.held[uid][container][resource].devices()))
}

// allocateContainer is ManagerImpl.Allocate: devices of ordinary init
// containers go on to the containers after them, those of sidecars do not.
func (k *Kubelet) allocateContainer(ctx context.Context, pod Pod, c Container) error {
	k.mu.Lock()
	maps.DeleteFunc(k.reuse, func(uid string, _ map[string]map[string]bool) bool { return uid != pod.UID })
	if k.reuse[pod.UID] == nil {
		k.reuse[pod.UID] = map[string]map[string]bool{}
	}
	k.mu.Unlock()
	for resource, n := range c.Limits {
		if err := k.allocateResource(ctx, pod, c.Name, resource, n); err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	reuse := k.reuse[pod.UID]
	for resource, held := range k.held[pod.UID][c.Name] {
		for id := range held.devices() {
			if c.Kind != Init {
				delete(reuse[resource], id)
				continue
			}
			if reuse[resource] == nil {
				reuse[resource] = map[string]bool{}
			}
			reuse[resource][id] = true
		}
	}
	k.writeCheckpointLocked()
	return nil
}

func (k *Kubelet) allocateResource(ctx context.Context, pod Pod, container, resource string, n int) error {
	k.mu.Lock()
	_, registered := k.healthy[resource]
	_, allocated := k.used[resource]
	if !registered && !allocated {
		// "isDevicePluginResource": another plugin's resource.
		k.mu.Unlock()
		return nil
	}
	k.collectLocked()
	ids, err := k.chooseLocked(ctx, pod, container, resource, n)
	e := k.endpoints[resource]
	stopped := e == nil || e.stopped
	k.mu.Unlock()
	if err != nil || len(ids) == 0 {
		return err
	}
	resp, err := allocate(ctx, e, stopped, ids)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.used = k.held.allocated()
		return err
	}
	k.held.put(pod.UID, container, resource, holding{ids: k.byNUMALocked(resource, ids), resp: resp})
	return nil
}

func allocate(
	ctx context.Context, e *endpoint, stopped bool, ids []string,
) (*v1beta1.ContainerAllocateResponse, error) {
	if stopped {
		return nil, errors.New("endpoint has been stopped")
	}
	resp, err := e.api.Allocate(ctx, &v1beta1.AllocateRequest{
		ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	if err != nil {
		return nil, err
	}
	if len(resp.ContainerResponses) == 0 {
		return nil, fmt.Errorf("no containers return in allocation response %v", resp)
	}
	return resp.ContainerResponses[0], nil
}

// chooseLocked is devicesToAllocate. It drops the lock while it asks for the
// preferred allocation, as the kubelet does.
func (k *Kubelet) chooseLocked(ctx context.Context, pod Pod, container, resource string, n int) ([]string, error) {
	if held, ok := k.held[pod.UID][container][resource]; ok {
		have := held.devices()
		if len(have) != n {
			return nil, fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d",
				pod.UID, container, resource, len(have), n)
		}
		if len(missing(have, k.healthy[resource])) > 0 {
			return nil, fmt.Errorf(
				"previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s", resource)
		}
		return nil, nil
	}
	healthy, registered := k.healthy[resource]
	if !registered {
		return nil, fmt.Errorf("cannot allocate unregistered device %s", resource)
	}
	if len(healthy) == 0 {
		return nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", resource)
	}
	if n == 0 {
		return nil, nil
	}
	pick := &choice{k: k, resource: resource, need: n, chosen: map[string]bool{}}
	if pick.take(k.reuse[pod.UID][resource]) {
		return keys(pick.chosen), nil
	}
	available := missing(healthy, k.used[resource])
	if len(available) < pick.need {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d",
			resource, pick.need, len(available))
	}
	return pick.fromAvailable(ctx, pod, available, n)
}

// choice collects the IDs for one container and resource.
type choice struct {
	k        *Kubelet
	resource string
	need     int
	chosen   map[string]bool
}

// take is allocateRemainingFrom. It reports whether enough are chosen.
func (c *choice) take(from map[string]bool) bool {
	for id := range from {
		if c.chosen[id] {
			continue
		}
		if c.k.used[c.resource] == nil {
			c.k.used[c.resource] = map[string]bool{}
		}
		c.k.used[c.resource][id] = true
		c.chosen[id] = true
		if c.need--; c.need == 0 {
			return true
		}
	}
	return false
}

func (c *choice) fromAvailable(ctx context.Context, pod Pod, available map[string]bool, n int) ([]string, error) {
	aligned, unaligned, anywhere := c.k.byAffinityLocked(c.resource, pod.NUMA, available)
	if c.need < len(aligned) {
		preferred, err := c.k.preferLocked(ctx, c.resource, union(aligned, c.chosen), c.chosen, n)
		if err != nil {
			return nil, err
		}
		if c.take(both(preferred, aligned)) || c.take(aligned) {
			return keys(c.chosen), nil
		}
		return nil, fmt.Errorf("unexpectedly allocated less resources than required")
	}
	if c.take(aligned) {
		return keys(c.chosen), nil
	}
	preferred, err := c.k.preferLocked(ctx, c.resource, union(available, c.chosen), c.chosen, n)
	if err != nil {
		return nil, err
	}
	if c.take(both(preferred, available)) || c.take(unaligned) || c.take(anywhere) {
		return keys(c.chosen), nil
	}
	return nil, fmt.Errorf("unexpectedly allocated less resources than required")
}

// byAffinityLocked is filterByAffinity: without a hint, or without a device
// that has a topology, all are devices without affinity.
func (k *Kubelet) byAffinityLocked(
	resource string, numa []int64, available map[string]bool,
) (aligned, unaligned, anywhere map[string]bool) {
	topology := false
	for _, d := range k.devices[resource] {
		topology = topology || len(d.GetTopology().GetNodes()) > 0
	}
	if len(numa) == 0 || !topology {
		return nil, nil, available
	}
	aligned, unaligned, anywhere = map[string]bool{}, map[string]bool{}, map[string]bool{}
	for id := range available {
		nodes := k.devices[resource][id].GetTopology().GetNodes()
		near := slices.ContainsFunc(nodes, func(n *v1beta1.NUMANode) bool { return slices.Contains(numa, n.GetID()) })
		switch {
		case len(nodes) == 0:
			anywhere[id] = true
		case near:
			aligned[id] = true
		default:
			unaligned[id] = true
		}
	}
	return aligned, unaligned, anywhere
}

// preferLocked is callGetPreferredAllocationIfAvailable: an error fails the
// pod.
func (k *Kubelet) preferLocked(
	ctx context.Context, resource string, available, must map[string]bool, n int,
) (map[string]bool, error) {
	e := k.endpoints[resource]
	if e == nil {
		return nil, fmt.Errorf("endpoint not found in cache for a registered resource: %s", resource)
	}
	if !e.options.GetGetPreferredAllocationAvailable() {
		return map[string]bool{}, nil
	}
	if e.stopped {
		return nil, errors.New("endpoint has been stopped")
	}
	request := &v1beta1.ContainerPreferredAllocationRequest{
		AvailableDeviceIDs: keys(available), MustIncludeDeviceIDs: keys(must), AllocationSize: int32(n),
	}
	k.mu.Unlock()
	resp, err := e.api.GetPreferredAllocation(ctx, &v1beta1.PreferredAllocationRequest{
		ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{request},
	})
	k.mu.Lock()
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
	}
	preferred := map[string]bool{}
	if len(resp.ContainerResponses) > 0 {
		for _, id := range resp.ContainerResponses[0].DeviceIDs {
			preferred[id] = true
		}
	}
	return preferred, nil
}

func missing(from, in map[string]bool) map[string]bool {
	rest := maps.Clone(from)
	maps.DeleteFunc(rest, func(id string, _ bool) bool { return in[id] })
	return rest
}

func both(a, b map[string]bool) map[string]bool {
	shared := map[string]bool{}
	for id := range a {
		if b[id] {
			shared[id] = true
		}
	}
	return shared
}

func union(a, b map[string]bool) map[string]bool {
	all := map[string]bool{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}
