//go:build cgo && linux

package nvml

import (
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Usage implements [gpu.Telemetry]: the processes with CUDA contexts, and how busy
// they kept the GPU.
func (l *Library) Usage(uuid string, after uint64) (gpu.Usage, error) {
	device, err := l.enter(uuid)
	if err != nil {
		return gpu.Usage{}, err
	}
	defer l.leave()
	infos, ret := device.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return gpu.Usage{}, failure("processes of GPU "+uuid, ret)
	}
	u := gpu.Usage{Processes: make([]gpu.Process, 0, len(infos))}
	for _, info := range infos {
		p := gpu.Process{PID: int(info.Pid), Bytes: -1}
		// NVML_VALUE_NOT_AVAILABLE has all bits set.
		if info.UsedGpuMemory <= math.MaxInt64 {
			p.Bytes = int64(info.UsedGpuMemory)
		}
		u.Processes = append(u.Processes, p)
	}
	if u.Samples, err = l.samples(device, after); err != nil {
		u.SamplesErr = fmt.Errorf("utilization of GPU %s: %w", uuid, err)
	}
	return u, nil
}

// samples are after a time of the driver's.
func (l *Library) samples(device nvml.Device, after uint64) (samples []gpu.Sample, err error) {
	if !l.has("nvmlDeviceGetProcessUtilization") {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	// The binding asks for the count first and slices by the count of the second
	// answer, which is out of range if there are more by then.
	defer func() {
		if r := recover(); r != nil {
			samples, err = nil, fmt.Errorf("%v", r)
		}
	}()
	raw, ret := device.GetProcessUtilization(after)
	switch {
	case ret == nvml.ERROR_NOT_FOUND, ret == nvml.ERROR_INSUFFICIENT_SIZE && len(raw) == 0:
		return nil, nil // No process did anything.
	case ret != nvml.SUCCESS:
		return nil, ret
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
