package resource_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/discovery/capacity"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/sharing/quota"
	"github.com/heddle-dev/heddle/test/inventorytest"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/test/state"
)

const slotsName = "nvidia.com/sgpu"

// node is a machine whose GPUs can be changed.
type shareNode struct {
	gpus []quota.GPU
	// dir is the device state's.
	dir string
}

func sharedGPUs(n, slots int) []quota.GPU {
	all := make([]quota.GPU, n)
	for i := range all {
		all[i] = quota.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, MemoryMiB: 81559, Slots: slots, NUMA: i % 2}
	}
	return all
}

func (n *shareNode) resource(t *testing.T, bound ...*allocate.Entry) *resource.Shares {
	t.Helper()
	n.dir = t.TempDir()
	return resource.NewShares(resource.Options{
		Name: slotsName, State: state.New(t, n.dir, n.inventory(), bound...), Driver: cdi.NewDriverSpec("", nil, host.Vendors(), nil),
	}, n.inventory())
}

// inventory is a node with the shared GPUs as they are.
func (n *shareNode) inventory() *inventory.Inventory { return sharing(n.gpus) }

func sharing(gpus []quota.GPU) *inventory.Inventory {
	c := config.Default()
	return &inventory.Inventory{Config: &c, Shared: gpus}
}

// well lists the healthy devices.
func well(r *resource.Shares) []string {
	var ids []string
	for _, d := range r.Devices() {
		if d.Healthy {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

func changed(r interface{ Changed() <-chan struct{} }) bool {
	select {
	case <-r.Changed():
		return true
	default:
		return false
	}
}

func TestSlotsGoWithTheirGPU(t *testing.T) {
	n := &shareNode{gpus: sharedGPUs(2, 2)}
	r := n.resource(t)
	changed(r)
	if got := r.Devices()[3]; got.ID != "GPU-1::1" || !got.Healthy || !slices.Equal(got.NUMA, []int64{1}) {
		t.Errorf("last slot %+v", got)
	}
	r.Refresh(n.inventory())
	if changed(r) {
		t.Error("a change is reported and nothing changed")
	}
	n.gpus = sharedGPUs(2, 2)
	n.gpus[0].Unhealthy = "XID 79"
	r.Refresh(n.inventory())
	if diff := cmp.Diff([]string{"GPU-1::0", "GPU-1::1"}, well(r)); diff != "" || !changed(r) || len(r.Devices()) != 4 {
		t.Errorf("GPU 0 is ill: healthy (-want +got):\n%s", diff)
	}
	// A slot in use is as well as the GPU that it stands for.
	r = n.resource(t, state.Entry(cdi.SGPU, slotsName, "GPU-0::1", "GPU-1"), state.Entry(cdi.SGPU, slotsName, "GPU-1::0", "GPU-0"))
	changed(r)
	if diff := cmp.Diff([]string{"GPU-0::1", "GPU-1::1"}, well(r)); diff != "" {
		t.Errorf("bound: healthy (-want +got):\n%s", diff)
	}
	n.gpus = nil
	r.Refresh(n.inventory())
	if len(r.Devices()) != 0 || !changed(r) {
		t.Errorf("without GPUs: %v", r.Devices())
	}
}

func TestAllocateShares(t *testing.T) {
	n := &shareNode{gpus: sharedGPUs(1, 4)}
	r := n.resource(t)
	answer, err := r.Allocate(t.Context(), []string{"GPU-0::1"})
	if err != nil {
		t.Fatal(err)
	}
	var devices []string
	for _, d := range answer.GetCdiDevices() {
		devices = append(devices, d.GetName())
	}
	if made, ok := cdi.ParseName(devices[0]); !ok || made.Kind != cdi.SGPU || !made.MadeFor(slotsName, []string{"GPU-0::1"}) {
		t.Errorf("name %s", devices[0])
	}
	if diff := cmp.Diff([]string{"driver.heddle.dev/gpu=common"}, devices[1:]); diff != "" || len(answer.GetEnvs())+len(answer.GetMounts()) > 0 {
		t.Errorf("answer %v (-want +got):\n%s", answer, diff)
	}
}

// FuzzPrefer: the answer is of the available slots, has what is given, and is
// as long as asked; no GPU is taken twice while another has none.
func FuzzPreferShares(f *testing.F) {
	f.Add(uint64(0x0f0f), uint64(1), 3)
	f.Add(uint64(1)<<63, uint64(0), 1)
	f.Fuzz(func(t *testing.T, free, must uint64, size int) {
		var available, given []string
		counts := map[string]int{}
		for i := range 64 {
			gpu := fmt.Sprintf("GPU-%d", i/8)
			if free>>i&1 == 0 {
				continue
			}
			available = append(available, inventory.ReplicaID(gpu, i%8))
			counts[gpu]++
			if must>>i&1 == 1 {
				given = append(given, inventory.ReplicaID(gpu, i%8))
			}
		}
		got, err := (*resource.Shares)(nil).Prefer(available, given, size)
		if err != nil {
			if size <= len(available) && size >= len(given) {
				t.Fatalf("%d of %v with %v: %v", size, available, given, err)
			}
			return
		}
		taken := map[string]int{}
		for _, id := range got {
			if !slices.Contains(available, id) {
				t.Errorf("%s is not free", id)
			}
			taken[inventory.DeviceOf(id)]++
		}
		for _, id := range given {
			if !slices.Contains(got, id) {
				t.Errorf("%s is given, and not in %v", id, got)
			}
		}
		if len(got) != max(size, 0) || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Errorf("%d slots: %v", size, got)
		}
		for gpu := range counts {
			for other := range counts {
				if len(given) == 0 && taken[gpu] > taken[other]+1 && taken[other] < counts[other] {
					t.Errorf("%d of %s and %d of %s, which has %d", taken[gpu], gpu, taken[other], other, counts[other])
				}
			}
		}
	})
}

func TestCounted(t *testing.T) {
	all := sharedGPUs(2, 16)
	cores := resource.NewCounted(resource.Cores, sharing(all))
	memory := resource.NewCounted(resource.Memory, sharing(all))
	if devices := cores.Devices(); len(devices) != 200 || devices[17].ID != "vcore-0017" || !devices[17].Healthy || devices[17].NUMA != nil {
		t.Errorf("%d cores, %+v", len(devices), devices[17])
	}
	if devices := memory.Devices(); len(devices) != 2*79 || devices[157].ID != "vmemory-0157" {
		t.Errorf("%d GiB", len(devices))
	}
	changed(cores)
	all[1].Unhealthy = "lost"
	cores.Refresh(sharing(all))
	if len(cores.Devices()) != 100 || !changed(cores) {
		t.Errorf("%d cores of one GPU", len(cores.Devices()))
	}
	cores.Refresh(sharing(all))
	if changed(cores) {
		t.Error("a change is reported and nothing changed")
	}
	answer, err := cores.Allocate(t.Context(), []string{"vcore-0001"})
	if err != nil || len(answer.GetCdiDevices())+len(answer.GetEnvs())+len(answer.GetMounts()) > 0 {
		t.Errorf("answer %v, error %v", answer, err)
	}
}

// TestGPUsAgreeWithCapacity: what is offered is what `heddle inspect -o
// resources` reports.
func TestSharesAgreeWithCapacity(t *testing.T) {
	for _, file := range machines.Names(t) {
		m := machines.Load(t, file)
		c := config.Default()
		c.Mode = config.ModeSGPU
		slots, cores, memory := 0, 0, 0
		for _, gpu := range inventorytest.Configured(m, &c).Shared {
			if gpu.Unhealthy == "" {
				slots, cores, memory = slots+gpu.Slots, cores+resource.Cores.Of(&gpu), memory+resource.Memory.Of(&gpu)
			}
		}
		got := map[string]int64{c.Resources.SGPU: int64(slots), c.Resources.VCore: int64(cores), c.Resources.VMemory: int64(memory)}
		for _, r := range capacity.Of(m, &c, host.Vendors()) {
			if n, listed := got[r.Name]; listed && n != r.Count {
				t.Errorf("%s: %d of %s, and capacity has %d", file, n, r.Name, r.Count)
			}
		}
	}
}
