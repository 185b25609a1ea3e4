//go:build cgo && linux

package nvml

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// rearm is how often a set is made anew that lacks a GPU: one that was reset
// or came back.
const rearm = 30 * time.Second

// watched is an event set and the GPUs in it. It belongs to whom library.waiting
// lets wait, and to Close once nobody does.
type watched struct {
	set nvml.EventSet
	// gpus are the handles that were registered: a GPU that just failed can
	// no longer tell its UUID.
	gpus map[nvml.Device]string
	// missing is how many were refused, generation the handles' when it was
	// made, since the time.
	missing    int
	generation int
	since      time.Time
}

// WaitEvent implements EventLibrary. A second caller is refused.
func (l *library) WaitEvent(wait time.Duration) (Event, error) {
	if !l.gate.enter() {
		return Event{}, fmt.Errorf("NVML is %w: the session is ending", ErrAbsent)
	}
	defer l.gate.leave()
	if !l.isOpen() {
		return Event{}, fmt.Errorf("NVML is %w: no session", ErrAbsent)
	}
	if !l.waiting.TryLock() {
		return Event{}, errors.New("wait for events: another wait has not returned")
	}
	defer l.waiting.Unlock()
	if err := l.arm(); err != nil {
		return Event{}, err
	}
	milliseconds := min(max(wait, 0), time.Hour).Milliseconds()
	data, ret := l.watched.set.Wait(uint32(milliseconds)) //nolint:gosec // Bounded above.
	switch ret {                                          //nolint:exhaustive // The others are failures.
	case nvml.SUCCESS:
		return l.event(data), nil
	case nvml.ERROR_TIMEOUT:
		return Event{}, ErrNoEvent
	}
	l.disarm()
	return Event{}, failure("wait for events", ret)
}

func (l *library) event(data nvml.EventData) Event {
	e := Event{GPU: l.watched.gpus[data.Device]}
	switch data.EventType {
	case nvml.EventTypeXidCriticalError:
		e.Kind, e.XID = EventXID, data.EventData
	case nvml.EventTypeDoubleBitEccError:
		e.Kind = EventECC
	default:
		// Not asked for: look at the GPUs.
		e.Kind = EventInterrupted
	}
	return e
}

// arm makes an event set unless there is one that has every known GPU, or one
// that is young. The new one is there before the old one goes, so that nothing
// falls between; what both saw is told twice.
func (l *library) arm() error {
	handles, generation := l.handles()
	if len(handles) == 0 {
		return fmt.Errorf("GPUs are %w: none was read yet", ErrAbsent)
	}
	w := &l.watched
	if w.set != nil && w.generation == generation && (w.missing == 0 || time.Since(w.since) < rearm) {
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
		free(set)
		return failure("register for events", last)
	}
	l.disarm()
	l.watched = next
	return nil
}

// register asks for the events that the GPU can send: old and consumer cards
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

// disarm drops the set.
func (l *library) disarm() {
	if l.watched.set != nil {
		free(l.watched.set)
	}
	l.watched = watched{}
}

// free gives a set back. One that cannot be is dropped all the same: there is
// nothing else to do with it.
func free(set nvml.EventSet) { _ = set.Free() }

// remember keeps the handle of a GPU that told its UUID.
func (l *library) remember(uuid string, device nvml.Device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.devices[uuid]; ok && known == device {
		return
	}
	if l.devices == nil {
		l.devices = map[string]nvml.Device{}
	}
	l.devices[uuid] = device
	l.generation++
}

// forget drops all handles: they end with the session.
func (l *library) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.devices = nil
	l.generation++
}

func (l *library) handles() (map[string]nvml.Device, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.devices), l.generation
}

// Known implements PulseLibrary.
func (l *library) Known() []string {
	handles, _ := l.handles()
	return slices.Collect(maps.Keys(handles))
}

// Pulse implements PulseLibrary. The temperature is read from the GPU itself:
// much else is answered from what the driver remembers.
func (l *library) Pulse(uuid string) (Action, error) {
	if !l.gate.enter() {
		return ActionUnknown, fmt.Errorf("NVML is %w: the session is ending", ErrAbsent)
	}
	defer l.gate.leave()
	handles, _ := l.handles()
	device, ok := handles[uuid]
	if !ok || !l.isOpen() {
		return ActionUnknown, fmt.Errorf("NVML is %w: no session", ErrAbsent)
	}
	_, ret := device.GetTemperature(nvml.TEMPERATURE_GPU)
	if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
		return ActionUnknown, failure("temperature", ret)
	}
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	switch ret := device.GetFieldValues(values); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_GPU_IS_LOST:
		return ActionUnknown, failure("recovery action", ret)
	default:
		return ActionUnknown, nil
	}
	switch ret := nvml.Return(values[0].NvmlReturn); ret { //nolint:gosec // NVML's own cast.
	case nvml.SUCCESS:
		return action(binary.NativeEndian.Uint32(values[0].Value[:])), nil
	case nvml.ERROR_GPU_IS_LOST:
		return ActionUnknown, failure("recovery action", ret)
	default:
		// Drivers before R565 do not know the field.
		return ActionUnknown, nil
	}
}
