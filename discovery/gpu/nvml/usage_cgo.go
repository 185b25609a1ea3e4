//go:build cgo && linux

package nvml

import (
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Usage implements [gpu.Telemetry].
func (l *Library) Usage(uuid string, after uint64) (gpu.Usage, error) {
	processes, err := l.Processes(uuid)
	if err != nil {
		return gpu.Usage{}, err
	}
	u := gpu.Usage{Processes: processes}
	u.Samples, u.SamplesErr = l.Samples(uuid, after)
	return u, nil
}

// Processes are those with CUDA contexts on a GPU.
func (l *Library) Processes(uuid string) ([]gpu.Process, error) {
	device, err := l.enter(uuid)
	if err != nil {
		return nil, err
	}
	defer l.leave()
	infos, ret := device.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return nil, failure("processes of GPU "+uuid, ret)
	}
	processes := make([]gpu.Process, 0, len(infos))
	for _, info := range infos {
		p := gpu.Process{PID: int(info.Pid), Bytes: -1}
		// NVML_VALUE_NOT_AVAILABLE has all bits set.
		if info.UsedGpuMemory <= math.MaxInt64 {
			p.Bytes = int64(info.UsedGpuMemory)
		}
		processes = append(processes, p)
	}
	return processes, nil
}

// Samples are how busy processes kept a GPU, after a time of the driver's.
func (l *Library) Samples(uuid string, after uint64) (samples []gpu.Sample, err error) {
	device, err := l.enter(uuid)
	if err != nil {
		return nil, err
	}
	defer l.leave()
	if !l.has("nvmlDeviceGetProcessUtilization") {
		return nil, failure("utilization of GPU "+uuid, nvml.ERROR_FUNCTION_NOT_FOUND)
	}
	// The binding asks for the count first and slices by the count of the second
	// answer, which is out of range if there are more by then.
	defer func() {
		if r := recover(); r != nil {
			samples, err = nil, fmt.Errorf("utilization of GPU %s: %v", uuid, r)
		}
	}()
	raw, ret := device.GetProcessUtilization(after)
	switch {
	case ret == nvml.ERROR_NOT_FOUND, ret == nvml.ERROR_INSUFFICIENT_SIZE && len(raw) == 0:
		return nil, nil // No process did anything.
	case ret != nvml.SUCCESS:
		return nil, failure("utilization of GPU "+uuid, ret)
	}
	for _, s := range raw {
		// The buffer is for as many as may run, and the rest of it stays zero.
		if s.Pid == 0 || s.TimeStamp <= after {
			continue
		}
		sm := -1
		if s.SmUtil <= 100 {
			sm = int(s.SmUtil)
		}
		samples = append(samples, gpu.Sample{PID: int(s.Pid), At: s.TimeStamp, SM: sm})
	}
	return samples, nil
}
