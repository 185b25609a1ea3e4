// Package claims counts how many pods with ResourceClaims fit on nodes, for plans. It asks the allocator of the
// scheduler's plugin DynamicResources, for one pod after another, as that plugin does: selectors, constraints,
// capacities, counters and taints are the allocator's. DynamicResources allocates and has the last word.
//
// Preemption frees no devices here: DynamicResources counts the claims of a pod that is to be evicted.
package claims

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/claims"
)

// Classes are DeviceClasses by name.
type Classes map[string]*resourceapi.DeviceClass

// List is for the allocator.
func (c Classes) List() ([]*resourceapi.DeviceClass, error) {
	return slices.Collect(maps.Values(c)), nil
}

// Get is for the allocator.
func (c Classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := c[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("DeviceClass %s does not exist", name)
}

// Cluster has what a cluster publishes for claims, and what claims have got.
type Cluster struct {
	Slices    []*resourceapi.ResourceSlice
	Classes   Classes
	Allocated *structured.AllocatedState
}

// maxReads bounds the reads of the scheduler's claims, which fail while one of them changes.
const maxReads = 100

// Read returns the scheduler's view of a cluster, with the allocations in flight. Without the API of claims it is
// empty.
func Read(dra framework.SharedDRAManager) (c Cluster, err error) {
	if dra == nil {
		return c, nil
	}
	if c.Slices, err = dra.ResourceSlices().ListWithDeviceTaintRules(); err != nil {
		return c, fmt.Errorf("list ResourceSlices: %w", err)
	}
	classes, err := dra.DeviceClasses().List()
	if err != nil {
		return c, fmt.Errorf("list DeviceClasses: %w", err)
	}
	c.Classes = make(Classes, len(classes))
	for _, class := range classes {
		c.Classes[class.Name] = class
	}
	for range maxReads {
		if c.Allocated, err = dra.ResourceClaims().GatherAllocatedState(); err == nil {
			return c, nil
		}
	}
	return c, fmt.Errorf("allocated devices: %w", err)
}

// Nodes has the devices of nodes, and keeps what does not change. It is for one goroutine.
type Nodes struct {
	classes  Classes
	allocate allocate
	// byName has the nodes with devices of their own, others the devices that all nodes can use.
	byName map[string]*Node
	others *Node
}

// maxExpressions bounds the compiled selectors that are kept.
const maxExpressions = 100

// maxSearch bounds the time of one allocation, which takes less than a millisecond unless constraints make the
// allocator try every combination of devices.
const maxSearch = time.Second

// New returns no nodes. What is asked of them later ends with the context.
func New(ctx context.Context) *Nodes {
	silent := logr.NewContext(ctx, logr.Discard())
	compiled := cel.NewCache(maxExpressions, cel.Features{EnableConsumableCapacity: true})
	return &Nodes{allocate: func(t *trial, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
		within, cancel := context.WithTimeout(silent, maxSearch)
		defer cancel()
		allocator, err := structured.NewAllocator(within, features(), *t.state, t.classes, t.slices, compiled)
		if err != nil {
			return nil, fmt.Errorf("allocator: %w", err)
		}
		return allocator.Allocate(within, t.node, claims)
	}}
}

// features returns the features of Kubernetes 1.37. An API server with fewer drops their fields.
func features() structured.Features {
	return structured.Features{
		AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true,
		DeviceBindingAndStatus: true, ConsumableCapacity: true, FractionalCapacityRange: true,
	}
}

// Update takes over a cluster.
func (n *Nodes) Update(c Cluster) {
	if !maps.Equal(n.classes, c.Classes) {
		n.classes, n.byName, n.others = c.Classes, nil, nil
	}
	now, of := map[string]*Node{}, map[structured.DeviceID]*Node{}
	for _, s := range c.Slices {
		name := ""
		if s.Spec.NodeName != nil {
			name = *s.Spec.NodeName
		}
		if now[name] == nil {
			now[name] = &Node{allocate: n.allocate, classes: c.Classes, state: NewState()}
		}
		now[name].slices = append(now[name].slices, s)
		of[poolOf(structured.MakeDeviceID(s.Spec.Driver, s.Spec.Pool.Name, ""))] = now[name]
	}
	if c.Allocated != nil {
		split(c.Allocated, of)
	}
	others := now[""]
	delete(now, "")
	if others != nil && others.same(n.others) {
		others = n.others
	}
	for name, node := range now {
		old := n.byName[name]
		switch same := node.same(old); {
		case same && others == n.others:
			now[name] = old
			continue
		case same:
			node.rooms, node.labels = old.rooms, old.labels
			maps.DeleteFunc(node.rooms, func(_ Key, r room) bool { return !r.own })
		}
		node.shared = others
		node.count()
	}
	n.byName, n.others = now, others
}

// poolOf returns the ID of a device's pool: that of a device without a name.
func poolOf(id structured.DeviceID) structured.DeviceID {
	return structured.DeviceID{Driver: id.Driver, Pool: id.Pool}
}

// split gives each node the state of its own devices. of has the nodes by pool.
func split(all *structured.AllocatedState, of map[structured.DeviceID]*Node) {
	for id := range all.AllocatedDevices {
		if node := of[poolOf(id)]; node != nil {
			node.state.AllocatedDevices.Insert(id)
		}
	}
	for id := range all.AllocatedSharedDeviceIDs {
		if node := of[poolOf(id.GetDeviceID())]; node != nil {
			node.state.AllocatedSharedDeviceIDs.Insert(id)
		}
	}
	for id, used := range all.AggregatedCapacity {
		if node := of[poolOf(id)]; node != nil {
			node.state.AggregatedCapacity[id] = used
		}
	}
}

// Of returns the devices that claims can get on a node; nil without any.
func (n *Nodes) Of(name string) *Node {
	if node, ok := n.byName[name]; ok {
		return node
	}
	return n.others
}

// Extended returns the extended resource that heddle's DeviceClass of GPUs stands for, empty without one: pods that
// request it get GPUs by claims.
func (n *Nodes) Extended() corev1.ResourceName {
	if class := n.classes[claims.ClassGPU]; class != nil && class.Spec.ExtendedResourceName != nil {
		return corev1.ResourceName(*class.Spec.ExtendedResourceName)
	}
	return ""
}
