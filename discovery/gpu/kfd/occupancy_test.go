package kfd_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// TestOccupancy: a process has the memory of a GPU by the GPU's number, and one that only watches has none. The driver
// counts the memory of a GPU and not that of a partition.
func TestOccupancy(t *testing.T) {
	r := newRig(t)
	if _, err := r.library.Occupancy(uuid); !errors.Is(err, gpu.ErrAbsent) {
		t.Errorf("before a scan: %v", err)
	}
	const mib = 1 << 20
	r.Write(nodes+"1/gpu_id", "51140")
	r.Write(nodes+"2/gpu_id", "7777")
	r.Write(r.pci("mem_info_vram_used"), "48350887936")
	process := func(pid, number, bytes string) { r.Write("sys/class/kfd/kfd/proc/"+pid+"/vram_"+number, bytes) }
	process("4711", "51140", "2147483648")
	process("4711", "7777", "0")
	process("4712", "51140", "0") // rocm-smi
	process("4713", "7777", "1048576")
	process("4714", "51140", "bad")
	r.host.Scan(t.Context())
	check := func(id string, want gpu.Occupancy) {
		t.Helper()
		want.Idle = 1 << 30
		got, err := r.library.Occupancy(id)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", id, err, diff)
		}
	}
	check(uuid, gpu.Occupancy{Processes: []gpu.Process{{PID: 4711, Bytes: 2048 * mib}}, Used: 46111 * mib})
	check("GPU-00000000000000a2", gpu.Occupancy{Processes: []gpu.Process{{PID: 4713, Bytes: mib}}, Used: -1})
	if _, err := r.library.Occupancy("GPU-of-another-vendor"); !errors.Is(err, gpu.ErrAbsent) {
		t.Errorf("another vendor's: %v", err)
	}
	r.cut("CPX", 8)
	r.Write(nodes+"10/gpu_id", "51141")
	process("4712", "51141", "1048576")
	r.host.Scan(t.Context())
	check(uuid+"-p0", gpu.Occupancy{Processes: []gpu.Process{{PID: 4711, Bytes: 2048 * mib}}, Used: 2048 * mib})
	check(uuid+"-p1", gpu.Occupancy{Processes: []gpu.Process{{PID: 4712, Bytes: mib}}, Used: mib})
	check(uuid+"-p2", gpu.Occupancy{})
}
