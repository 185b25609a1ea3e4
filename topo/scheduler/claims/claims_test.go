package claims

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/claims"
)

// manager stands for the scheduler's view of DRA.
type manager struct {
	framework.SharedDRAManager
	framework.ResourceClaimTracker

	class  string
	slices []*resourceapi.ResourceSlice
	state  structured.AllocatedState
}

func (m *manager) ResourceClaims() framework.ResourceClaimTracker            { return m }
func (m *manager) ResourceSlices() framework.ResourceSliceLister             { return m }
func (m *manager) DeviceClassResolver() framework.DeviceClassResolver        { return m }
func (m *manager) GatherAllocatedState() (*structured.AllocatedState, error) { return &m.state, nil }

func (m *manager) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	return m.slices, nil
}

func (m *manager) GetDeviceClass(corev1.ResourceName) *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: m.class}}
}

// published returns a device of a GPU as heddle's driver publishes it.
func published(name string, of claims.Type, uuid string, taints ...resourceapi.DeviceTaint) resourceapi.Device {
	kind := string(of)
	return resourceapi.Device{Name: name, Taints: taints, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		claims.AttributeType: {StringValue: &kind}, claims.AttributeUUID: {StringValue: &uuid},
	}}
}

func TestFree(t *testing.T) {
	node, other := "gpu-1", "gpu-2"
	var devices []resourceapi.Device
	for _, uuid := range []string{"a", "b", "c", "d"} {
		devices = append(devices, published("gpu-"+uuid, claims.GPU, uuid), published("pair-"+uuid, claims.Pair, uuid))
	}
	sick := resourceapi.DeviceTaint{Key: claims.TaintUnhealthy, Effect: resourceapi.DeviceTaintEffectNoSchedule}
	devices = append(devices, published("gpu-e", claims.GPU, "e", sick), published("mig-f", claims.MIG, "f"))
	slice := func(driver, node string, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node}, Devices: devices,
		}}
	}
	m := &manager{slices: []*resourceapi.ResourceSlice{
		slice(claims.Driver, node, devices...), slice("gpu.nvidia.com", other, published("gpu-x", claims.GPU, "x")),
	}}
	id := func(name string) structured.DeviceID { return structured.MakeDeviceID(claims.Driver, node, name) }
	// One GPU is given whole, one in a pair, one to two claims in parts, and one is unhealthy.
	m.state.AllocatedDevices = sets.New(id("gpu-a"), id("pair-b"))
	m.state.AllocatedSharedDeviceIDs = sets.New[structured.SharedDeviceID]()
	for _, share := range []types.UID{"1", "2"} {
		m.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id("gpu-c"), &share))
	}
	names := []corev1.ResourceName{"nvidia.com/gpu"}
	for class, want := range map[string]map[string]int64{"gpu.heddle.dev": {node: 1}, "gpu.nvidia.com": nil} {
		m.class = class
		got, err := Free(m, names)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("class %s, %v (-want +got):\n%s", class, err, diff)
		}
	}
	if got, err := Free(nil, names); got != nil || err != nil {
		t.Errorf("without DRA: %v, %v", got, err)
	}
}
