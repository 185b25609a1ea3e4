package kfd_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/kfd"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// rig is a machine of two MI300X as files, and the host that scans it.
type rig struct {
	*sysfstest.Tree
	t       *testing.T
	host    *host.Host
	library *kfd.Library
}

const (
	nodes  = "sys/class/kfd/kfd/topology/nodes/"
	first  = "0000:05:00.0"
	second = "0000:27:00.0"
	uuid   = "GPU-00000000000000a1"
)

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Tree: sysfstest.New(t), t: t}
	r.Attributes("sys/module/amdgpu", map[string]string{"version": "6.12.12"})
	r.Write(nodes+"0/properties", "cpu_cores_count 64\nsimd_count 0\n")
	for i, address := range []string{first, second} {
		dir := r.PCI(sysfstest.Function{
			Path: fmt.Sprintf("pci0000:%02x/0000:%02x:01.0/%s", 0x20*i, 0x20*i, address), Class: "0x120000",
			Vendor: "0x1002", Device: "0x74a1", Driver: "amdgpu", NUMA: i, CPUs: "0-63",
		})
		r.Attributes(dir, map[string]string{
			"mem_info_vram_total": "206141652992", "product_name": "AMD Instinct MI300X OAM",
			"current_compute_partition": "SPX", "current_memory_partition": "NPS1",
			"ras/umc_err_count": "ue: 0\nce: 3", "ras/gfx_err_count": "ue: 0\nce: 0", "ras/features": "feature mask: 0x5fff",
		})
		r.node(1+i, i, 0, 1216, 128+8*i)
	}
	r.library = kfd.New(gpu.Options{SysfsRoot: r.Sys(), DevRoot: r.Dev()})
	r.host = host.New(host.Options{
		SysfsRoot: r.Sys(), DevRoot: r.Dev(), ProcRoot: r.Proc(),
		GPUs: gpu.Sources{{Vendor: kfd.Vendor(), Library: r.library}},
	})
	return r
}

func (r *rig) vendor() *gpu.Vendor { return kfd.Vendor() }

// node writes a topology node: a partition of a GPU, with a link to node 1 or 2.
func (r *rig) node(id, gpu, partition, simds, render int) {
	location := []int{0x0500, 0x2700}[gpu] | partition<<28
	r.Write(fmt.Sprintf(nodes+"%d/properties", id), fmt.Sprintf(`cpu_cores_count 0
simd_count %d
simd_per_cu 4
gfx_target_version 90402
vendor_id 4098
device_id 29857
location_id %d
domain 0
drm_render_minor %d
hive_id 77
unique_id %d
num_xcc 8
`, simds, location, render, 0xa1+gpu))
	r.Write(fmt.Sprintf(nodes+"%d/mem_banks/0/properties", id), "heap_type 1\nsize_in_bytes 25769803776\nflags 0\n")
	r.Write(fmt.Sprintf(nodes+"%d/io_links/0/properties", id), "type 2\nnode_to 0\nweight 20\nmin_bandwidth 312\nmax_bandwidth 64000\n")
	r.Write(fmt.Sprintf(nodes+"%d/io_links/1/properties", id),
		fmt.Sprintf("type 11\nnode_to %d\nweight 15\nmin_bandwidth 64000\nmax_bandwidth 128000\n", 2-gpu))
	sys := fmt.Sprintf("sys/class/drm/renderD%d/device/drm/", render)
	for _, name := range []string{fmt.Sprintf("renderD%d", render), fmt.Sprintf("card%d", render-127), "controlD64"} {
		r.Dir(sys + name)
	}
}

// replace changes a file of the topology.
func (r *rig) replace(path, was, is string) {
	r.t.Helper()
	text, err := os.ReadFile(r.Root + "/" + path)
	if err != nil || !strings.Contains(string(text), was) {
		r.t.Fatalf("%s has no %q: %s, %v", path, was, text, err)
	}
	r.Raw(path, strings.Replace(string(text), was, is, 1))
}

// pci is a file of the first GPU's function.
func (*rig) pci(name string) string { return "sys/bus/pci/devices/" + first + "/" + name }

// cut cuts the first GPU into n partitions.
func (r *rig) cut(mode string, n int) {
	r.Write(r.pci("current_compute_partition"), mode)
	r.Write(r.pci("current_memory_partition"), "NPS4")
	for p := range n {
		id := 1
		if p > 0 {
			id = 9 + p
		}
		r.node(id, 0, p, 1216/n, 128+p)
	}
}

func TestRead(t *testing.T) {
	r := newRig(t)
	m := r.host.Scan(t.Context())
	link := func(to string) []machine.NVLink {
		return []machine.NVLink{{Kind: "XGMI", Peer: to, Links: 2, MBps: new(int64(128000))}}
	}
	want := machine.GPU{
		Vendor: "amd.com", UUID: uuid, PCI: first, Minor: new(128), Product: "AMD Instinct MI300X OAM",
		Architecture: "cdna3", MemoryMiB: 196592, NVLinks: link(second), Health: machine.Health{State: machine.Healthy},
		MIG: machine.MIG{Mode: "SPX/NPS1", Capable: true},
		Attributes: map[string]string{
			"cu-count": "304", "simd-count": "1216", "device-id": "74a1", "family": "AI", "vram": "192G",
			"product-name": "AMD_Instinct_MI300X_OAM", "compute-memory-partition": "spx_nps1",
			"compute-partitioning-supported": "true", "memory-partitioning-supported": "true",
		},
	}
	other := want
	other.UUID, other.Index, other.PCI, other.Minor, other.NVLinks = "GPU-00000000000000a2", 1, second, new(136), link(first)
	if diff := cmp.Diff([]machine.GPU{want, other}, m.GPUs); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
	if m.Driver.Version != "6.12.12" || len(m.Skipped) > 0 {
		t.Errorf("driver %+v, skipped %v", m.Driver, m.Skipped)
	}
	if err := m.Validate(); err != nil {
		t.Error(err)
	}
}

func TestPartitions(t *testing.T) {
	r := newRig(t)
	r.cut("CPX", 8)
	m := r.host.Scan(t.Context())
	mig := m.GPUs[0].MIG
	if !mig.Enabled || mig.Mode != "CPX/NPS4" || len(mig.Devices) != 8 || len(m.GPUs) != 2 {
		t.Fatalf("%d GPUs, the first cut as %+v", len(m.GPUs), mig)
	}
	for p, d := range mig.Devices {
		want := machine.MIGDevice{
			UUID: fmt.Sprintf("%s-p%d", uuid, p), Profile: "cpx_nps4", MemoryMiB: 24576, Multiprocessors: 38,
			GPUSlices: 1, ComputeSlices: 1, Minor: new(128 + p),
		}
		if diff := cmp.Diff(want, d); diff != "" {
			t.Errorf("partition %d (-want +got):\n%s", p, diff)
		}
	}
	// Older kernels write the partition's number in the bits of the function.
	for p := 1; p < 8; p++ {
		was, is := fmt.Sprintf("location_id %d", 0x500|p<<28), fmt.Sprintf("location_id %d", 0x500|p)
		r.replace(fmt.Sprintf(nodes+"%d/properties", 9+p), was, is)
	}
	if diff := cmp.Diff(mig, r.host.Scan(t.Context()).GPUs[0].MIG); diff != "" {
		t.Errorf("as older kernels write it (-newer +older):\n%s", diff)
	}
}

// A link of two hops does not count; between partitions the kernel reports weight 41 and no
// bandwidth. Without mem_info_vram_total the memory banks count.
func TestOtherKernels(t *testing.T) {
	r := newRig(t)
	link := nodes + "1/io_links/1/properties"
	r.replace(link, "weight 15", "weight 30")
	r.Remove(r.pci("mem_info_vram_total"))
	g := r.host.Scan(t.Context()).GPUs[0]
	if len(g.NVLinks) > 0 || g.MemoryMiB != 24576 {
		t.Errorf("links %+v, %d MiB", g.NVLinks, g.MemoryMiB)
	}
	r.Write(link, "type 11\nnode_to 2\nweight 41\nmin_bandwidth 0\nmax_bandwidth 0\n")
	want := []machine.NVLink{{Kind: "XGMI", Peer: second, Links: 1}}
	if diff := cmp.Diff(want, r.host.Scan(t.Context()).GPUs[0].NVLinks); diff != "" {
		t.Errorf("between partitions (-want +got):\n%s", diff)
	}
	r.Unreadable(r.pci("ras/umc_err_count"))
	m := r.host.Scan(t.Context())
	if m.GPUs[0].Health.State != machine.Healthy || !strings.Contains(fmt.Sprint(m.Skipped), "ECC: RAS block umc: read ") {
		t.Errorf("a counter that cannot be read: %s, skipped %v", m.GPUs[0].Health, m.Skipped)
	}
}

// The corrected errors of XGMI are read once after each Take; a GPU whose kernel counts none has no link.
func TestLinkErrors(t *testing.T) {
	r := newRig(t)
	counters := gpu.NewLinkCounters()
	r.Write(r.pci("ras/xgmi_wafl_err_count"), "ue: 0\nce: 12")
	h := host.New(host.Options{SysfsRoot: r.Sys(), DevRoot: r.Dev(), ProcRoot: r.Proc(), LinkCounters: counters})
	m := h.Scan(t.Context())
	want := map[string]map[string]machine.LinkErrors{
		m.GPUs[0].UUID: {"XGMI": {"xgmi-errors": 12}}, m.GPUs[1].UUID: nil,
	}
	if diff := cmp.Diff(want, counters.Take()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if again := counters.Take(); len(again) != 0 {
		t.Errorf("taken twice: %v", again)
	}
}
