package kubelet

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// The kubelet's podresources.DefaultQPS and DefaultBurstTokens: one limiter
// for all methods and all callers.
const (
	podResourcesQPS   = 100
	podResourcesBurst = 10
)

// Fault, given to Disturb, runs before every PodResources call that the
// limiter let through; the caller gets an error.
type Fault func(ctx context.Context, method string) error

// Disturb makes the PodResources server slow or broken; nil mends it.
func (k *Kubelet) Disturb(fault Fault) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fault = fault
}

// PodResourcesCalls counts the calls that reached the server, and those of
// them that the limiter rejected.
func (k *Kubelet) PodResourcesCalls() (calls, rejected int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.calls, k.rejected
}

func (k *Kubelet) limit(limiter *rate.Limiter) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		allowed := limiter.Allow()
		k.mu.Lock()
		k.calls++
		if !allowed {
			k.rejected++
		}
		fault := k.fault
		k.mu.Unlock()
		if !allowed {
			return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
		}
		if fault != nil {
			if err := fault(ctx, info.FullMethod); err != nil {
				return nil, err
			}
		}
		return handler(ctx, req)
	}
}

func (k *Kubelet) servePodResources() (*grpc.Server, error) {
	listener, err := listen(k.PodResourcesSocket())
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(k.limit(rate.NewLimiter(podResourcesQPS, podResourcesBurst))))
	podresources.RegisterPodResourcesListerServer(server, &lister{k: k})
	k.serving.Go(func() { _ = server.Serve(listener) })
	return server, nil
}

// lister is the kubelet's v1PodResourcesServer.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	k *Kubelet
}

// List shows active pods: app containers and sidecars. Ordinary init
// containers are left out, and no UID is given.
func (l *lister) List(
	context.Context, *podresources.ListPodResourcesRequest,
) (*podresources.ListPodResourcesResponse, error) {
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	l.k.collectLocked()
	resp := &podresources.ListPodResourcesResponse{}
	for _, pod := range l.k.pods {
		resp.PodResources = append(resp.PodResources, l.k.resourcesLocked(pod))
	}
	return resp, nil
}

// Get shows one active pod.
func (l *lister) Get(
	_ context.Context, req *podresources.GetPodResourcesRequest,
) (*podresources.GetPodResourcesResponse, error) {
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	for _, pod := range l.k.pods {
		if pod.Namespace == req.PodNamespace && pod.Name == req.PodName {
			return &podresources.GetPodResourcesResponse{PodResources: l.k.resourcesLocked(pod)}, nil
		}
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", req.PodName, req.PodNamespace)
}

// GetAllocatableResources shows the healthy devices of every resource, in use
// or not.
func (l *lister) GetAllocatableResources(
	context.Context, *podresources.AllocatableResourcesRequest,
) (*podresources.AllocatableResourcesResponse, error) {
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	resp := &podresources.AllocatableResourcesResponse{}
	for resource, healthy := range l.k.healthy {
		for id := range healthy {
			resp.Devices = append(resp.Devices, containerDevices(resource, id, l.k.devices[resource][id].GetTopology())...)
		}
	}
	return resp, nil
}

func (k *Kubelet) resourcesLocked(pod Pod) *podresources.PodResources {
	resources := &podresources.PodResources{Namespace: pod.Namespace, Name: pod.Name}
	for _, kind := range []Kind{Sidecar, App} {
		for _, c := range pod.Containers {
			if c.Kind != kind {
				continue
			}
			entry := &podresources.ContainerResources{Name: c.Name, CpuIds: c.CPUs}
			for resource, held := range k.held[pod.UID][c.Name] {
				entry.Devices = append(entry.Devices, held.list(resource)...)
			}
			resources.Containers = append(resources.Containers, entry)
		}
	}
	return resources
}

// list is one entry per ID and NUMA node (containerDevicesFromResourceDeviceInstances).
func (h holding) list(resource string) []*podresources.ContainerDevices {
	topology := map[string]*v1beta1.TopologyInfo{}
	var ids []string
	for node, at := range h.ids {
		for _, id := range at {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
			if node < 0 {
				continue
			}
			if topology[id] == nil {
				topology[id] = &v1beta1.TopologyInfo{}
			}
			topology[id].Nodes = append(topology[id].Nodes, &v1beta1.NUMANode{ID: node})
		}
	}
	var entries []*podresources.ContainerDevices
	for _, id := range ids {
		entries = append(entries, containerDevices(resource, id, topology[id])...)
	}
	return entries
}

func containerDevices(resource, id string, topology *v1beta1.TopologyInfo) []*podresources.ContainerDevices {
	if topology == nil {
		return []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: []string{id}}}
	}
	var entries []*podresources.ContainerDevices
	for _, node := range topology.GetNodes() {
		entries = append(entries, &podresources.ContainerDevices{
			ResourceName: resource, DeviceIds: []string{id},
			Topology: &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: node.GetID()}}},
		})
	}
	return entries
}
