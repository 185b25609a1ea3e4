package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// StartContainer does what the kubelet does before CreateContainer
// (GetDeviceRunContainerOptions): PreStartContainer of every resource in
// random order, then Allocate for what the container should hold and does not.
// The answer is what the runtime gets: CDI names, sorted, and the rest of the
// answers to Allocate, merged.
func (k *Kubelet) StartContainer(
	ctx context.Context, namespace, name, container string,
) (*v1beta1.ContainerAllocateResponse, error) {
	k.mu.Lock()
	i := slices.IndexFunc(k.pods, func(p Pod) bool { return p.Namespace == namespace && p.Name == name })
	var pod Pod
	if i >= 0 {
		pod = k.pods[i]
	}
	k.mu.Unlock()
	c, ok := pod.find(container)
	if !ok {
		return nil, fmt.Errorf("no container %s/%s/%s", namespace, name, container)
	}
	again := false
	for resource, n := range c.Limits {
		k.mu.Lock()
		_, registered := k.healthy[resource]
		_, allocated := k.used[resource]
		_, held := k.held[pod.UID][container][resource]
		k.mu.Unlock()
		if n == 0 || !registered && !allocated {
			continue
		}
		if err := k.preStart(ctx, pod.UID, container, resource); err != nil {
			return nil, err
		}
		again = again || !held
	}
	if again {
		if err := k.allocateContainer(ctx, pod, c); err != nil {
			return nil, err
		}
	}
	return k.options(pod.UID, container), nil
}

// preStart is callPreStartContainerIfNeeded.
func (k *Kubelet) preStart(ctx context.Context, uid, container, resource string) error {
	k.mu.Lock()
	e := k.endpoints[resource]
	needed := e != nil && e.options.GetPreStartRequired()
	held, ok := k.held[uid][container][resource]
	stopped := e != nil && e.stopped
	k.mu.Unlock()
	switch {
	case e == nil:
		return fmt.Errorf("endpoint not found in cache for a registered resource: %s", resource)
	case !needed:
		// Also between a restart of the kubelet and the plugin's registration,
		// when it knows no options.
		return nil
	case !ok:
		return fmt.Errorf("no devices found allocated in local cache for pod %s, container %s, resource %s",
			uid, container, resource)
	case stopped:
		return errors.New("endpoint has been stopped")
	}
	ctx, cancel := context.WithTimeout(ctx, v1beta1.KubeletPreStartContainerRPCTimeoutInSecs*time.Second)
	defer cancel()
	_, err := e.api.PreStartContainer(ctx, &v1beta1.PreStartContainerRequest{DevicesIds: keys(held.devices())})
	if err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}

// options is deviceRunContainerOptions. Where resources disagree about an
// environment variable, one of them wins by chance, as in the kubelet.
func (k *Kubelet) options(uid, container string) *v1beta1.ContainerAllocateResponse {
	k.mu.Lock()
	defer k.mu.Unlock()
	merged := &v1beta1.ContainerAllocateResponse{Envs: map[string]string{}, Annotations: map[string]string{}}
	seen := map[string]bool{}
	for _, held := range k.held[uid][container] {
		maps.Copy(merged.Envs, held.resp.Envs)
		maps.Copy(merged.Annotations, held.resp.Annotations)
		merged.Devices = append(merged.Devices, held.resp.Devices...)
		merged.Mounts = append(merged.Mounts, held.resp.Mounts...)
		for _, cdi := range held.resp.CdiDevices {
			if !seen[cdi.Name] {
				seen[cdi.Name] = true
				merged.CdiDevices = append(merged.CdiDevices, cdi)
			}
		}
	}
	slices.SortFunc(merged.CdiDevices, func(a, b *v1beta1.CDIDevice) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return merged
}
