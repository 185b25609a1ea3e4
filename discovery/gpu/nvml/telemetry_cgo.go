//go:build cgo && linux

package nvml

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// watched is an event set and the GPUs in it. It belongs to the holder of
// Library.waiting, and then to Close.
type watched struct {
	set nvml.EventSet
	// gpus are the handles that were registered: the UUID of a GPU that just
	// failed cannot be read any more.
	gpus map[nvml.Device]string
	// missing is how many were rejected, generation the handles' when it was
	// made, since the time.
	missing    int
	generation int
	since      time.Time
}

// WaitEvent implements [gpu.Telemetry]. A second caller is rejected.
func (l *Library) WaitEvent(wait time.Duration) (gpu.Event, error) {
	if !l.gate.TryAcquire(1) {
		return gpu.Event{}, errEnding
	}
	defer l.leave()
	if !l.waiting.TryLock() {
		return gpu.Event{}, errors.New("wait for events: another wait has not returned")
	}
	defer l.waiting.Unlock()
	if err := l.arm(); err != nil {
		return gpu.Event{}, err
	}
	milliseconds := min(max(wait, 0), time.Hour).Milliseconds()
	data, ret := l.watched.set.Wait(uint32(milliseconds)) //nolint:gosec // Bounded above.
	switch ret {                                          //nolint:exhaustive // The others are failures.
	case nvml.SUCCESS:
		return l.event(data), nil
	case nvml.ERROR_TIMEOUT:
		return gpu.Event{}, gpu.ErrNoEvent
	}
	l.disarm()
	return gpu.Event{}, failure("wait for events", ret)
}

func (l *Library) event(data nvml.EventData) gpu.Event {
	e := gpu.Event{GPU: l.watched.gpus[data.Device]}
	switch data.EventType {
	case nvml.EventTypeXidCriticalError:
		codes := catalog()
		e.Code = codes.Code(data.EventData)
	case nvml.EventTypeDoubleBitEccError:
		// Whether the error was contained, an XID and the driver's action report.
		e.Code = gpu.Code{Kind: gpu.DoubleBitECC, Severity: gpu.Driver, Text: "double-bit ECC error"}
	default:
		// Not asked for: the GPUs are polled.
		return gpu.Event{}
	}
	return e
}

// arm makes an event set unless there is one that has every known GPU, or one
// that is young. The new one is there before the old one goes, so that no event
// is lost; what both saw is reported twice.
func (l *Library) arm() error {
	handles, generation := l.handles()
	if len(handles) == 0 {
		return fmt.Errorf("GPUs are %w: none was read yet", gpu.ErrAbsent)
	}
	w := &l.watched
	if w.set != nil && w.generation == generation && (w.missing == 0 || time.Since(w.since) < gpu.EventRearm) {
		return nil
	}
	set, ret := l.api.EventSetCreate()
	if ret != nvml.SUCCESS {
		return failure("create an event set", ret)
	}
	next := watched{set: set, gpus: map[nvml.Device]string{}, generation: generation, since: time.Now()}
	var last nvml.Return
	for uuid, device := range handles {
		switch last = register(device, set); last {
		case nvml.SUCCESS:
			next.gpus[device] = uuid
		case nvml.ERROR_NOT_SUPPORTED:
		default:
			next.missing++
		}
	}
	if len(next.gpus) == 0 {
		_ = set.Free()
		return failure("register for events", last)
	}
	l.disarm()
	l.watched = next
	return nil
}

// register asks for the events that the GPU can send: old and consumer GPUs
// lack some, and asking for one of those fails as a whole.
func register(device nvml.Device, set nvml.EventSet) nvml.Return {
	const wanted = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError
	supported, ret := device.GetSupportedEventTypes()
	if ret != nvml.SUCCESS {
		return ret
	}
	if supported&wanted == 0 {
		return nvml.ERROR_NOT_SUPPORTED
	}
	return device.RegisterEvents(supported&wanted, set)
}

// disarm drops the set, also if it cannot be given back.
func (l *Library) disarm() {
	if l.watched.set != nil {
		_ = l.watched.set.Free()
	}
	l.watched = watched{}
}

// Pulse implements [gpu.Telemetry]. The temperature is read from the GPU itself:
// much else is answered from what the driver remembers.
func (l *Library) Pulse(uuid string) (gpu.Action, error) {
	device, err := l.enter(uuid)
	if err != nil {
		return gpu.ActionUnknown, err
	}
	defer l.leave()
	_, ret := device.GetTemperature(nvml.TEMPERATURE_GPU)
	if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
		return gpu.ActionUnknown, failure("temperature", ret)
	}
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if ret = device.GetFieldValues(values); ret == nvml.SUCCESS {
		ret = nvml.Return(values[0].NvmlReturn) //nolint:gosec // NVML's own cast.
	}
	switch ret { //nolint:exhaustive // Drivers before R565 do not know the field.
	case nvml.SUCCESS:
		return action(binary.NativeEndian.Uint32(values[0].Value[:])), nil
	case nvml.ERROR_GPU_IS_LOST:
		return gpu.ActionUnknown, failure("recovery action", ret)
	}
	return gpu.ActionUnknown, nil
}

// Usage implements [gpu.Telemetry]: the processes with CUDA contexts, and how busy
// they kept the GPU.
func (l *Library) Usage(uuid string, after uint64) (gpu.Usage, error) {
	device, err := l.enter(uuid)
	if err != nil {
		return gpu.Usage{}, err
	}
	defer l.leave()
	u := gpu.Usage{}
	if u.Processes, err = processes(uuid, device.GetComputeRunningProcesses); err != nil {
		return u, err
	}
	if u.Samples, err = l.samples(device, after); err != nil {
		u.SamplesErr = fmt.Errorf("utilization of GPU %s: %w", uuid, err)
	}
	return u, nil
}

func processes(uuid string, list func() ([]nvml.ProcessInfo, nvml.Return)) ([]gpu.Process, error) {
	infos, ret := list()
	if ret != nvml.SUCCESS {
		return nil, failure("processes of GPU "+uuid, ret)
	}
	all := make([]gpu.Process, 0, len(infos))
	for _, info := range infos {
		p := gpu.Process{PID: int(info.Pid), Bytes: -1}
		// NVML_VALUE_NOT_AVAILABLE has all bits set.
		if info.UsedGpuMemory <= math.MaxInt64 {
			p.Bytes = int64(info.UsedGpuMemory)
		}
		all = append(all, p)
	}
	return all, nil
}

// idleBytes is more than NVML reports in use on a GPU without a process, which is at most some dozen MiB with MIG or
// an idle MPS server, and less than a CUDA context has on a GPU for servers.
const idleBytes = 256 << 20

// Occupancy implements [gpu.Occupied]. Drivers before R510 do not separate what they reserve from what is in use. A
// display uses memory, and so does the kernel where a GPU's memory is a NUMA node (Grace).
func (l *Library) Occupancy(uuid string) (gpu.Occupancy, error) {
	device, err := l.enter(uuid)
	if err != nil {
		return gpu.Occupancy{}, err
	}
	defer l.leave()
	on := gpu.Occupancy{Used: -1, Idle: idleBytes}
	if on.Processes, err = processes(uuid, device.GetComputeRunningProcesses); err != nil {
		return on, err
	}
	drawing, _ := processes(uuid, device.GetGraphicsRunningProcesses)
	for _, p := range drawing {
		if p.Passive = true; !slices.ContainsFunc(on.Processes, func(c gpu.Process) bool { return c.PID == p.PID }) {
			on.Processes = append(on.Processes, p)
		}
	}
	display, _ := device.GetDisplayActive()
	ret := nvml.ERROR_NOT_SUPPORTED
	if l.has("nvmlDeviceGetNumaNodeId") {
		_, ret = device.GetNumaNodeId()
	}
	if display == nvml.FEATURE_DISABLED && ret != nvml.SUCCESS && l.has("nvmlDeviceGetMemoryInfo_v2") {
		if memory, ret := device.GetMemoryInfo_v2(); ret == nvml.SUCCESS && memory.Used <= math.MaxInt64 {
			on.Used = int64(memory.Used)
		}
	}
	return on, nil
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
