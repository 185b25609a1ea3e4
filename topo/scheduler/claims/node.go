package claims

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/heddle-dev/heddle/api/claims"
)

// Node has the devices that claims can get on a node.
type Node struct {
	// GPUs is the number of heddle's whole GPUs that are free.
	GPUs int64

	allocate allocate
	slices   []*resourceapi.ResourceSlice
	state    *structured.AllocatedState
	shared   *Node // The devices of all nodes.
	classes  Classes
	// rooms are known results of Room by demand, valid with these labels of the node.
	rooms  map[Key]room
	labels map[string]string
}

// allocate returns the devices that the allocator finds for claims, nothing if it finds none for some.
type allocate func(*trial, []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error)

// room is how many pods fit, of at most some. With own these have devices of the node alone.
type room struct {
	pods, most int64
	own        bool
}

// NewState returns the state of a cluster without allocated devices.
func NewState() *structured.AllocatedState {
	return &structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
}

// same reports whether a node has the same devices with the same use. The IDs of shares are of allocations, so that
// equal ones have used equal capacity.
func (n *Node) same(old *Node) bool {
	return old != nil && slices.Equal(n.slices, old.slices) &&
		n.state.AllocatedDevices.Equal(old.state.AllocatedDevices) &&
		n.state.AllocatedSharedDeviceIDs.Equal(old.state.AllocatedSharedDeviceIDs)
}

// count counts the free GPUs: those without taints that no claim has a part of, in a pair or a share either.
func (n *Node) count() {
	used := map[string]bool{}
	for id := range n.state.AllocatedDevices {
		used[id.Device.String()] = true
	}
	for id := range n.state.AllocatedSharedDeviceIDs {
		used[id.Device.String()] = true
	}
	taken, free := map[string]bool{}, map[string]bool{}
	for _, s := range n.slices {
		if s.Spec.Driver != claims.Driver {
			continue
		}
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			uuid := attribute(d, claims.AttributeUUID)
			taken[uuid] = taken[uuid] || used[d.Name]
			if attribute(d, claims.AttributeType) == string(claims.GPU) && !tainted(d) {
				free[uuid] = true
			}
		}
	}
	for uuid := range free {
		if !taken[uuid] {
			n.GPUs++
		}
	}
}

// attribute returns a text attribute of heddle's.
func attribute(d *resourceapi.Device, key resourceapi.QualifiedName) string {
	a, ok := d.Attributes[key]
	if !ok {
		a = d.Attributes[claims.Driver+"/"+key]
	}
	if a.StringValue == nil {
		return ""
	}
	return *a.StringValue
}

func tainted(d *resourceapi.Device) bool {
	return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool {
		return t.Effect != resourceapi.DeviceTaintEffectNone
	})
}

// Room returns how many pods with a demand get devices on a node beside others, at most most.
func (n *Node) Room(node *corev1.Node, d *Demand, beside []*Demand, most int64) (pods int64) {
	switch {
	case len(d.claims) == 0: // They have their devices, here or of no node.
		return most
	case n == nil:
		return 0
	}
	other := func(b *Demand) bool { return b.Key != d.Key }
	if alike := int64(len(beside)); alike > 0 && !slices.ContainsFunc(beside, other) {
		return max(0, n.Room(node, d, nil, most+alike)-alike)
	}
	if len(beside) == 0 {
		if n.rooms == nil || !maps.Equal(n.labels, node.Labels) {
			n.rooms, n.labels = map[Key]room{}, node.Labels
		}
		if known, ok := n.rooms[d.Key]; ok && (known.pods < known.most || most <= known.most) {
			return min(known.pods, most)
		}
	}
	t := n.trial(node, beside)
	for pods < most && t.take(d) {
		pods++
	}
	if len(beside) == 0 {
		n.rooms[d.Key] = room{pods, most, pods > 0 && !t.foreign}
	}
	return pods
}

// Fits reports whether all of some pods get devices on a node beside others.
func (n *Node) Fits(node *corev1.Node, all, beside []*Demand) bool {
	if n == nil {
		return !slices.ContainsFunc(all, func(d *Demand) bool { return len(d.claims) > 0 })
	}
	t := n.trial(node, beside)
	return !slices.ContainsFunc(all, func(d *Demand) bool { return !t.take(d) })
}

// trial allocates devices of a node to claims, without any effect.
type trial struct {
	*Node
	node  *corev1.Node
	state *structured.AllocatedState
	// slices are the node's own and those of all nodes.
	slices []*resourceapi.ResourceSlice
	// shared are the claims of several pods that have devices already, and foreign reports a device of no node.
	shared  map[types.UID]bool
	foreign bool
}

// trial allocates devices to some pods, if it can.
func (n *Node) trial(node *corev1.Node, beside []*Demand) *trial {
	t := &trial{Node: n, node: node, state: NewState(), shared: map[types.UID]bool{}}
	for _, of := range []*Node{n, n.shared} {
		if of != nil {
			t.slices = append(t.slices, of.slices...)
			t.state.AllocatedDevices = t.state.AllocatedDevices.Union(of.state.AllocatedDevices)
			t.state.AllocatedSharedDeviceIDs = t.state.AllocatedSharedDeviceIDs.Union(of.state.AllocatedSharedDeviceIDs)
			maps.Copy(t.state.AggregatedCapacity, of.state.AggregatedCapacity.Clone())
		}
	}
	for _, other := range beside {
		t.take(other)
	}
	return t
}

// take allocates devices to the claims of a pod.
func (t *trial) take(d *Demand) bool {
	wanted := slices.DeleteFunc(slices.Clone(d.claims), func(c *resourceapi.ResourceClaim) bool { return t.shared[c.UID] })
	results, err := t.allocate(t, wanted)
	if err != nil || len(results) < len(wanted) {
		return false
	}
	for i := range results {
		Add(t.state, &results[i])
		t.shared[wanted[i].UID] = d.shared[wanted[i].UID]
		for _, r := range results[i].Devices.Results {
			t.foreign = t.foreign || !slices.ContainsFunc(t.Node.slices, func(s *resourceapi.ResourceSlice) bool {
				return s.Spec.Pool.Name == r.Pool && s.Spec.Driver == r.Driver
			})
		}
	}
	return true
}

// Add adds an allocation to a state.
func Add(state *structured.AllocatedState, allocation *resourceapi.AllocationResult) {
	for i := range allocation.Devices.Results {
		r := &allocation.Devices.Results[i]
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		switch {
		case r.AdminAccess != nil && *r.AdminAccess: // It takes nothing.
		case r.ShareID != nil:
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		default:
			state.AllocatedDevices.Insert(id)
		}
	}
}
