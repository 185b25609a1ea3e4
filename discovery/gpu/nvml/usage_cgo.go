//go:build cgo && linux

package nvml

import (
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// device is one that a Reader has read in the open session.
func (l *library) device(uuid string) (nvml.Device, error) {
	handles, _ := l.handles()
	device, ok := handles[uuid]
	if !ok || !l.isOpen() {
		return nil, fmt.Errorf("GPU %s is %w: no session has read it", uuid, ErrAbsent)
	}
	return device, nil
}

// Processes implements UsageLibrary.
func (l *library) Processes(uuid string) ([]Process, error) {
	if !l.gate.enter() {
		return nil, fmt.Errorf("NVML is %w: the session is ending", ErrAbsent)
	}
	defer l.gate.leave()
	device, err := l.device(uuid)
	if err != nil {
		return nil, err
	}
	infos, ret := device.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return nil, failure("processes of GPU "+uuid, ret)
	}
	processes := make([]Process, 0, len(infos))
	for _, info := range infos {
		p := Process{PID: int(info.Pid), Bytes: -1}
		// NVML_VALUE_NOT_AVAILABLE has all bits set.
		if info.UsedGpuMemory <= math.MaxInt64 {
			p.Bytes = int64(info.UsedGpuMemory)
		}
		processes = append(processes, p)
	}
	return processes, nil
}

// Samples implements UsageLibrary.
func (l *library) Samples(uuid string, after uint64) (samples []Sample, err error) {
	if !l.gate.enter() {
		return nil, fmt.Errorf("NVML is %w: the session is ending", ErrAbsent)
	}
	defer l.gate.leave()
	device, err := l.device(uuid)
	if err != nil {
		return nil, err
	}
	if !l.has("nvmlDeviceGetProcessUtilization") {
		return nil, failure("utilization of GPU "+uuid, nvml.ERROR_FUNCTION_NOT_FOUND)
	}
	// The binding asks for the count first and slices by what the second answer
	// says it is, which is out of range if there are more by then.
	defer func() {
		if r := recover(); r != nil {
			samples, err = nil, fmt.Errorf("utilization of GPU %s: %v", uuid, r)
		}
	}()
	raw, ret := device.GetProcessUtilization(after)
	switch {
	case ret == nvml.ERROR_NOT_FOUND, ret == nvml.ERROR_INSUFFICIENT_SIZE && len(raw) == 0:
		return nil, nil // Nobody did anything.
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
		samples = append(samples, Sample{PID: int(s.Pid), At: s.TimeStamp, SM: sm})
	}
	return samples, nil
}
