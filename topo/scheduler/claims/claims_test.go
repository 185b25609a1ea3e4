package claims

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/claims/pool"
	"github.com/heddle-dev/heddle/test/inventorytest"
	"github.com/heddle-dev/heddle/test/machines"
)

// manager is what the scheduler knows of DRA.
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

func TestFree(t *testing.T) {
	machine, c := machines.Load(t, "dgx-h100"), config.Default()
	c.Mode = config.ModeClaims
	inv := inventorytest.Configured(machine, &c)
	sick := inv.GPUs[machine.GPUs[7].UUID]
	sick.Unhealthy = "XID 79"
	inv.GPUs[machine.GPUs[7].UUID] = sick
	node, p := "gpu-1", pool.Of(inv)
	m := &manager{class: "gpu.heddle.dev"}
	for _, s := range p.Slices() {
		m.slices = append(m.slices, &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
			Driver: claims.Driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node}, Devices: s.Devices,
		}})
	}
	other := "other"
	m.slices = append(m.slices, &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: "gpu.nvidia.com", NodeName: &other}})
	id := func(of claims.Type, gpu int) structured.DeviceID {
		for d := range p.Devices() {
			if d.Type == of && d.GPU == machine.GPUs[gpu].UUID {
				return structured.MakeDeviceID(claims.Driver, node, d.Name)
			}
		}
		t.Fatalf("GPU %d has no %s", gpu, of)
		return structured.DeviceID{}
	}
	// One whole GPU, one in a pair, one shared by two claims; one is unhealthy.
	m.state.AllocatedDevices = sets.New(id(claims.GPU, 0), id(claims.Pair, 1))
	m.state.AllocatedSharedDeviceIDs = sets.New[structured.SharedDeviceID]()
	for range 2 {
		m.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id(claims.GPU, 2), nil))
	}
	names := []corev1.ResourceName{"nvidia.com/gpu"}
	for class, want := range map[string]map[string]int64{"gpu.heddle.dev": {node: 4}, "gpu.nvidia.com": nil} {
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
