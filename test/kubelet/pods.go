package kubelet

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/test/kubelet/checkpoint"
)

// Kind is how a container runs in its pod.
type Kind int

// The kinds differ in when they run, in whether PodResources lists them, and
// in whether their devices go on to the next container.
const (
	App     Kind = iota
	Init         // an ordinary init container: not in PodResources, its devices are reused
	Sidecar      // a restartable init container: listed, its devices stay its own
)

// Container is one container of a pod and its request.
type Container struct {
	Name   string
	Kind   Kind
	Limits map[string]int // resource -> number of devices
	CPUs   []int64        // Those that the CPU manager gave it alone.
}

// Pod is a pod as the kubelet knows it. NUMA, when set, is the affinity that
// the topology manager chose.
type Pod struct {
	Namespace, Name, UID string
	Containers           []Container
	NUMA                 []int64
}

func (p Pod) find(name string) (Container, bool) {
	i := slices.IndexFunc(p.Containers, func(c Container) bool { return c.Name == name })
	if i < 0 {
		return Container{}, false
	}
	return p.Containers[i], true
}

// holding has the devices of one resource that one container holds (the kubelet's
// deviceAllocateInfo).
type holding struct {
	ids  checkpoint.DevicesPerNUMA
	resp *v1beta1.ContainerAllocateResponse
}

func (h holding) devices() map[string]bool {
	all := map[string]bool{}
	for _, ids := range h.ids {
		for _, id := range ids {
			all[id] = true
		}
	}
	return all
}

// holdings is keyed by pod UID, container, resource.
type holdings map[string]map[string]map[string]holding

func (h holdings) put(uid, container, resource string, v holding) {
	if h[uid] == nil {
		h[uid] = map[string]map[string]holding{}
	}
	if h[uid][container] == nil {
		h[uid][container] = map[string]holding{}
	}
	h[uid][container][resource] = v
}

// allocated is the kubelet's allocatedDevices: the IDs in use by resource.
func (h holdings) allocated() map[string]map[string]bool {
	used := map[string]map[string]bool{}
	for _, containers := range h {
		for _, resources := range containers {
			for resource, held := range resources {
				if used[resource] == nil {
					used[resource] = map[string]bool{}
				}
				maps.Copy(used[resource], held.devices())
			}
		}
	}
	return used
}

func (h holdings) entries() ([]checkpoint.PodDevicesEntry, error) {
	var entries []checkpoint.PodDevicesEntry
	for uid, containers := range h {
		for container, resources := range containers {
			for resource, held := range resources {
				blob, err := proto.Marshal(held.resp)
				if err != nil {
					return nil, fmt.Errorf("encode the answer to Allocate: %w", err)
				}
				entries = append(entries, checkpoint.PodDevicesEntry{
					PodUID: uid, ContainerName: container, ResourceName: resource, DeviceIDs: held.ids, AllocResp: blob,
				})
			}
		}
	}
	return entries, nil
}

func (h holdings) load(entries []checkpoint.PodDevicesEntry) error {
	for _, e := range entries {
		resp := &v1beta1.ContainerAllocateResponse{}
		if err := proto.Unmarshal(e.AllocResp, resp); err != nil {
			return fmt.Errorf("decode the answer to Allocate: %w", err)
		}
		h.put(e.PodUID, e.ContainerName, e.ResourceName, holding{ids: e.DeviceIDs, resp: resp})
	}
	return nil
}

// Add makes a pod active without admitting it: it shows in PodResources.
// A pod with the same UID is replaced.
func (k *Kubelet) Add(pod Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.removeLocked(func(p Pod) bool { return p.UID == pod.UID })
	k.pods = append(k.pods, pod)
}

// Delete makes a pod inactive. As in the kubelet its devices are freed when
// the next admission or PodResources call looks.
func (k *Kubelet) Delete(namespace, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.removeLocked(func(p Pod) bool { return p.Namespace == namespace && p.Name == name })
}

func (k *Kubelet) removeLocked(gone func(Pod) bool) { k.pods = slices.DeleteFunc(k.pods, gone) }

// Assign writes, without a plugin, that a container of an active pod holds
// ids, as if Allocate had answered resp (nil: an empty answer), and writes the
// checkpoint. A pod or container that is not known is added.
func (k *Kubelet) Assign(pod Pod, container, resource string, ids []string, resp *v1beta1.ContainerAllocateResponse) {
	k.tb.Helper()
	if resp == nil {
		resp = &v1beta1.ContainerAllocateResponse{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := slices.IndexFunc(k.pods, func(p Pod) bool { return p.UID == pod.UID }); i >= 0 {
		pod = k.pods[i]
	}
	if _, ok := pod.find(container); !ok {
		pod.Containers = append(slices.Clone(pod.Containers), Container{Name: container})
	}
	k.removeLocked(func(p Pod) bool { return p.UID == pod.UID })
	k.pods = append(k.pods, pod)
	k.collectLocked() // As before each allocation.
	k.held.put(pod.UID, container, resource, holding{ids: k.byNUMALocked(resource, ids), resp: resp})
	k.used = k.held.allocated()
	k.writeCheckpointLocked()
}

// byNUMALocked groups IDs as the kubelet does after Allocate. A device that
// left the list meanwhile is a nil pointer there, and the kubelet dies:
//
//	if m.allDevices[resource][dev].Topology == nil || len(...) == 0 {
//
// (manager.go, allocateContainerResources). Without any plugin for the
// resource, IDs are taken as they are.
func (k *Kubelet) byNUMALocked(resource string, ids []string) checkpoint.DevicesPerNUMA {
	grouped := checkpoint.DevicesPerNUMA{}
	all, listed := k.devices[resource]
	for _, id := range ids {
		device := all[id]
		if listed && device == nil {
			k.tb.Errorf("the kubelet would panic: %s device %s left the list during Allocate", resource, id)
		}
		nodes := device.GetTopology().GetNodes()
		if len(nodes) == 0 {
			grouped[-1] = append(grouped[-1], id)
		}
		for _, node := range nodes {
			grouped[node.GetID()] = append(grouped[node.GetID()], id)
		}
	}
	return grouped
}

// collectLocked is the kubelet's UpdateAllocatedDevices.
func (k *Kubelet) collectLocked() {
	active := map[string]bool{}
	for _, pod := range k.pods {
		active[pod.UID] = true
	}
	maps.DeleteFunc(k.held, func(uid string, _ map[string]map[string]holding) bool { return !active[uid] })
	k.used = k.held.allocated()
}
