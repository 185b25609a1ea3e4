//go:build cgo && linux

package nvml

import (
	"errors"
	"math"
	"testing"

	"github.com/heddle-dev/heddle/discovery/gpu"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"
)

func TestProcesses(t *testing.T) {
	b := newBoard(t)
	if _, err := b.library.Usage("GPU-1", 0); !errors.Is(err, gpu.ErrAbsent) {
		t.Errorf("without a session: %v", err)
	}
	b.read(t)
	answer := nvml.SUCCESS
	b.devices[1].GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 41, UsedGpuMemory: 3 << 30}, {Pid: 42, UsedGpuMemory: math.MaxUint64}}, answer
	}
	b.devices[1].GetProcessUtilizationFunc = func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		return nil, nvml.ERROR_NOT_FOUND
	}
	got, err := b.library.Usage("GPU-1", 0)
	if diff := cmp.Diff([]gpu.Process{{PID: 41, Bytes: 3 << 30}, {PID: 42, Bytes: -1}}, got.Processes); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	answer = nvml.ERROR_GPU_IS_LOST
	if got, err := b.library.Usage("GPU-1", 0); !errors.Is(err, gpu.ErrLost) || got.Processes != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// TestOccupancy: a process that draws and computes counts as one that computes, the memory of a display does not show a
// process, and a driver that does not separate its own memory reports none.
func TestOccupancy(t *testing.T) {
	b := newBoard(t)
	if _, err := b.library.Occupancy("MIG-1"); !errors.Is(err, gpu.ErrAbsent) {
		t.Errorf("without a session: %v", err)
	}
	b.read(t)
	d, display := b.devices[1], nvml.FEATURE_DISABLED
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 41, UsedGpuMemory: 3 << 30}}, nvml.SUCCESS
	}
	d.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 41, UsedGpuMemory: 3 << 30}, {Pid: 42, UsedGpuMemory: 4 << 20}}, nvml.SUCCESS
	}
	d.GetDisplayActiveFunc = func() (nvml.EnableState, nvml.Return) { return display, nvml.SUCCESS }
	d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{Reserved: 1 << 30, Used: 3<<30 + 8<<20}, nvml.SUCCESS
	}
	numa := nvml.ERROR_NOT_SUPPORTED
	d.GetNumaNodeIdFunc = func() (int, nvml.Return) { return 2, numa }
	api, ok := b.library.api.(*mock.Interface)
	if !ok {
		t.Fatalf("%T", b.library.api)
	}
	api.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		if uuid != "MIG-1" {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return d, nvml.SUCCESS
	}
	check := func(uuid string, used int64) {
		t.Helper()
		want := gpu.Occupancy{
			Processes: []gpu.Process{{PID: 41, Bytes: 3 << 30}, {PID: 42, Bytes: 4 << 20, Passive: true}}, Used: used, Idle: 256 << 20,
		}
		got, err := b.library.Occupancy(uuid)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", uuid, err, diff)
		}
	}
	check("GPU-1", 3<<30+8<<20)
	check("MIG-1", 3<<30+8<<20)
	if _, err := b.library.Occupancy("MIG-2"); !errors.Is(err, gpu.ErrAbsent) {
		t.Errorf("an unknown MIG device: %v", err)
	}
	api.ExtensionsFunc = func() nvml.ExtendedInterface { return symbols{missing: "nvmlDeviceGetMemoryInfo_v2"} }
	check("GPU-1", -1)
	api.ExtensionsFunc, display = func() nvml.ExtendedInterface { return symbols{} }, nvml.FEATURE_ENABLED
	check("GPU-1", -1)
	display, numa = nvml.FEATURE_DISABLED, nvml.SUCCESS
	check("GPU-1", -1)
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST }
	if _, err := b.library.Occupancy("GPU-1"); !errors.Is(err, gpu.ErrLost) {
		t.Errorf("a lost GPU: %v", err)
	}
}

func TestSamples(t *testing.T) {
	answer := func(ret nvml.Return, raw ...nvml.ProcessUtilizationSample) func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		return func(after uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			if after != 100 {
				t.Errorf("asked for what came after %d", after)
			}
			return raw, ret
		}
	}
	for _, tt := range []struct {
		name, missing string
		answer        func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return)
		want          []gpu.Sample
		err           string
	}{
		{
			"what was reported before, two processes, and the buffer's rest", "", answer(nvml.SUCCESS,
				nvml.ProcessUtilizationSample{Pid: 43, TimeStamp: 100, SmUtil: 1},
				nvml.ProcessUtilizationSample{Pid: 41, TimeStamp: 150, SmUtil: 60, MemUtil: 3},
				nvml.ProcessUtilizationSample{Pid: 42, TimeStamp: 151, SmUtil: 4207}, nvml.ProcessUtilizationSample{}),
			[]gpu.Sample{{PID: 41, At: 150, SM: 60}, {PID: 42, At: 151, SM: -1}},
			"",
		},
		{"no process did anything", "", answer(nvml.ERROR_NOT_FOUND), nil, ""},
		{"no buffer is needed", "", answer(nvml.ERROR_INSUFFICIENT_SIZE), nil, ""},
		{"a GPU that does not report it", "", answer(nvml.ERROR_NOT_SUPPORTED), nil, "utilization of GPU GPU-1: ERROR_NOT_SUPPORTED"},
		{
			"more processes than a moment before", "", func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
				n := 2
				return make([]nvml.ProcessUtilizationSample, 1)[:n], nvml.ERROR_INSUFFICIENT_SIZE
			}, nil, "utilization of GPU GPU-1: runtime error: slice bounds out of range [:2] with capacity 1",
		},
		{"an old driver", "nvmlDeviceGetProcessUtilization", nil, nil, "utilization of GPU GPU-1: ERROR_FUNCTION_NOT_FOUND"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBoard(t)
			b.read(t)
			b.devices[1].GetProcessUtilizationFunc = tt.answer
			if tt.missing != "" {
				b.library = of(b.devices[1], tt.missing)
				b.library.remember("GPU-1", b.devices[1])
			}
			b.devices[1].GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS }
			got, err := b.library.Usage("GPU-1", 100)
			text := ""
			if got.SamplesErr != nil {
				text = got.SamplesErr.Error()
			}
			if diff := cmp.Diff(tt.want, got.Samples); diff != "" || text != tt.err {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}
