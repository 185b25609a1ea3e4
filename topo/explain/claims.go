package explain

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/heddle-dev/heddle/topo/scheduler/claims"
)

// devices returns what the cluster has for claims, and the claims.
func (c *Cluster) devices() (claims.Cluster, lister) {
	all := lister{}
	out := claims.Cluster{Classes: claims.Classes{}, Allocated: claims.NewState()}
	for i := range c.Classes {
		out.Classes[c.Classes[i].Name] = &c.Classes[i]
	}
	for i := range c.Slices {
		out.Slices = append(out.Slices, &c.Slices[i])
	}
	for i := range c.Claims {
		claim := &c.Claims[i]
		all[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] = claim
		if allocation := claim.Status.Allocation; allocation != nil {
			claims.Add(out.Allocated, allocation)
		}
	}
	return out, all
}

// demands returns the demands of pods with claims, and sets the fault.
func (q *question) demands(c *Cluster, pods []*corev1.Pod) []*claims.Demand {
	placed, some := make([]bool, len(pods)), false
	for i, pod := range pods {
		placed[i], some = pod.Spec.NodeName != "", some || len(pod.Spec.ResourceClaims) > 0
	}
	var demands []*claims.Demand
	err := errNoClasses
	if !some || len(c.Classes) > 0 {
		demands, err = q.devices.Demands(q.claims, pods, placed)
	}
	if err != nil {
		q.fault = err.Error()
		return make([]*claims.Demand, len(pods))
	}
	return demands
}

var errNoClasses = errors.New("its claims are not counted: no DeviceClass can be read")

// lister has ResourceClaims by name.
type lister map[types.NamespacedName]*resourceapi.ResourceClaim

// Get returns a claim.
func (l lister) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	if claim, ok := l[types.NamespacedName{Namespace: namespace, Name: name}]; ok {
		return claim, nil
	}
	return nil, fmt.Errorf("ResourceClaim %s does not exist", name)
}

// GetPendingAllocation returns nil: only a scheduler has such allocations.
func (lister) GetPendingAllocation(types.UID) *resourceapi.AllocationResult { return nil }

// devices counts the devices that a pod has by claims.
func (l lister) devices(pod *corev1.Pod) (n int64) {
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		if claim, err := l.Get(pod.Namespace, *name); err == nil && claim.Status.Allocation != nil {
			n += int64(len(claim.Status.Allocation.Devices.Results))
		}
	}
	return n
}
