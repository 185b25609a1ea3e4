package claims

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/claims"
)

// manager stands for the scheduler's view of DRA.
type manager struct {
	framework.SharedDRAManager
	framework.ResourceClaimTracker

	slices  []*resourceapi.ResourceSlice
	claims  map[string]*resourceapi.ResourceClaim
	pending map[types.UID]*resourceapi.AllocationResult
	state   *structured.AllocatedState
	classes
}

type classes []*resourceapi.DeviceClass

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) { return Classes{}.Get(name) }

func (c classes) List() ([]*resourceapi.DeviceClass, error)       { return c, nil }
func (m *manager) ResourceClaims() framework.ResourceClaimTracker { return m }
func (m *manager) ResourceSlices() framework.ResourceSliceLister  { return m }
func (m *manager) DeviceClasses() framework.DeviceClassLister     { return m.classes }

func (m *manager) GatherAllocatedState() (*structured.AllocatedState, error) { return m.state, nil }
func (m *manager) List() ([]*resourceapi.ResourceClaim, error)               { return nil, nil }

func (m *manager) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	if c := m.claims[namespace+"/"+name]; c != nil {
		return c, nil
	}
	return nil, apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), name)
}

func (m *manager) GetPendingAllocation(uid types.UID) *resourceapi.AllocationResult {
	return m.pending[uid]
}

func (m *manager) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	return m.slices, nil
}

// newManager is for nodes of four GPUs, each with an HCA and the pair of both.
func newManager(nodes ...string) *manager {
	m := &manager{
		state: NewState(), claims: map[string]*resourceapi.ResourceClaim{},
		pending: map[types.UID]*resourceapi.AllocationResult{},
	}
	for name, device := range map[string]claims.Type{
		claims.ClassGPU: claims.GPU, claims.ClassPair: claims.Pair, "hca.heddle.dev": claims.HCA, "sgpu.heddle.dev": claims.GPU,
	} {
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		class.Spec.Selectors = selectors("device.driver == '%[1]s' && device.attributes['%[1]s'].type == '%[2]s'", claims.Driver, device)
		if name == claims.ClassGPU {
			class.Spec.ExtendedResourceName = new("nvidia.com/gpu")
		}
		m.classes = append(m.classes, class)
	}
	for _, node := range nodes {
		slice := func(s resourceapi.ResourceSliceSpec) {
			s.Driver, s.NodeName = claims.Driver, &node
			s.Pool = resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 2}
			m.slices = append(m.slices, &resourceapi.ResourceSlice{Spec: s})
		}
		var devices []resourceapi.Device
		var sets []resourceapi.CounterSet
		for i := range 4 {
			gpu, hca := fmt.Sprint("gpu-", i), fmt.Sprint("hca-", i)
			whole, port := device(gpu, claims.GPU, gpu, i, gpu), device(hca, claims.HCA, "", i, hca)
			whole.AllowMultipleAllocations = new(true)
			whole.Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				claims.CapacityVCore: capacity("100"), claims.CapacityVMemory: capacity("80Gi"),
			}
			devices = append(devices, whole, port, device(fmt.Sprint("pair-", i), claims.Pair, gpu, i, gpu, hca))
			for _, name := range []string{gpu, hca} {
				sets = append(sets, resourceapi.CounterSet{Name: name, Counters: map[string]resourceapi.Counter{
					"use": {Value: resource.MustParse("1")},
				}})
			}
		}
		slice(resourceapi.ResourceSliceSpec{Devices: devices})
		slice(resourceapi.ResourceSliceSpec{SharedCounters: sets})
	}
	return m
}

func capacity(all string) resourceapi.DeviceCapacity {
	q := resource.MustParse(all)
	return resourceapi.DeviceCapacity{Value: q, RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default: &q, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: new(resource.MustParse("1"))},
	}}
}

// device returns a device as heddle's driver publishes it, one of its rail.
func device(name string, of claims.Type, uuid string, rail int, counters ...string) resourceapi.Device {
	d := resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		claims.AttributeType: {StringValue: new(string(of))}, claims.AttributeUUID: {StringValue: &uuid},
		claims.AttributeRail: {IntValue: new(int64(rail))}, claims.AttributeNVLink: {IntValue: new(int64(rail / 2))},
	}}
	for _, set := range counters {
		d.ConsumesCounters = append(d.ConsumesCounters, resourceapi.DeviceCounterConsumption{
			CounterSet: set, Counters: map[string]resourceapi.Counter{"use": {Value: resource.MustParse("1")}},
		})
	}
	return d
}

func selectors(format string, args ...any) []resourceapi.DeviceSelector {
	return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(format, args...)}}}
}

// request asks for devices of a class; change may be nil.
func request(class string, count int64, change func(*resourceapi.ExactDeviceRequest)) resourceapi.DeviceRequest {
	one := &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}
	if change != nil {
		change(one)
	}
	return resourceapi.DeviceRequest{Name: "r", Exactly: one}
}

func share(vcore, vmemory string) func(*resourceapi.ExactDeviceRequest) {
	return func(one *resourceapi.ExactDeviceRequest) {
		one.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
			claims.CapacityVCore: resource.MustParse(vcore), claims.CapacityVMemory: resource.MustParse(vmemory),
		}}
	}
}

// pod adds a pod with a claim of its own by a template, which exists unless it has no requests.
func (m *manager) pod(name, template string, requests ...resourceapi.DeviceRequest) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ai", Name: name, UID: types.UID(name)}}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimTemplateName: &template}}
	if requests == nil {
		return p
	}
	p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "devices", ResourceClaimName: new(name + "-devices")}}
	m.claim(name+"-devices", requests...)
	return p
}

func (m *manager) claim(name string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ai", Name: name, UID: types.UID(name)}}
	c.Spec.Devices.Requests = requests
	m.claims["ai/"+name] = c
	return c
}

func sharing(name, claim string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ai", Name: name, UID: types.UID(name)}}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: &claim}}
	return p
}

// read returns the devices of the manager's nodes.
func (m *manager) read(t *testing.T, into *Nodes) *Nodes {
	t.Helper()
	c, err := Read(m)
	if err != nil {
		t.Fatal(err)
	}
	into.Update(c)
	return into
}

func (m *manager) demands(t *testing.T, n *Nodes, pods ...*corev1.Pod) []*Demand {
	t.Helper()
	all, err := n.Demands(m, pods, make([]bool, len(pods)))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// allocate gives devices of node a to a claim.
func (m *manager) allocate(names ...string) {
	for _, name := range names {
		m.state.AllocatedDevices.Insert(structured.MakeDeviceID(claims.Driver, "a", name))
	}
}

const most = 110

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

func selector(name string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name}},
	}}}}
}
