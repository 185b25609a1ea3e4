//go:build cgo && linux

package nvml

import (
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

const bothKinds = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError

// board is a machine with two GPUs, and the event sets that were made.
type board struct {
	library *Library
	devices []*mock.Device
	// events are what the next waits return; without any they time out.
	events chan nvml.EventData
	result nvml.Return
	// registered are the GPUs of the newest set; sets and freed count.
	registered  []string
	sets, freed int
	// waits counts; inside is called at every wait.
	inside func()
}

func newBoard(t *testing.T) *board {
	t.Helper()
	b := &board{events: make(chan nvml.EventData, 4), result: nvml.SUCCESS}
	for _, uuid := range []string{"GPU-0", "GPU-1"} {
		d := device()
		d.GetUUIDFunc = func() (string, nvml.Return) { return uuid, nvml.SUCCESS }
		d.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return bothKinds | nvml.EventTypePState, nvml.SUCCESS }
		d.RegisterEventsFunc = func(types uint64, _ nvml.EventSet) nvml.Return {
			if types != bothKinds {
				t.Errorf("asked for events %#x", types)
			}
			b.registered = append(b.registered, uuid)
			return nvml.SUCCESS
		}
		d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 40, nvml.SUCCESS }
		b.devices = append(b.devices, d)
	}
	b.library = New(gpu.Options{})
	b.library.api = &mock.Interface{
		InitFunc:                          func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:                      func() nvml.Return { return nvml.SUCCESS },
		SystemGetDriverVersionFunc:        func() (string, nvml.Return) { return "570.86.15", nvml.SUCCESS },
		SystemGetCudaDriverVersion_v2Func: func() (int, nvml.Return) { return 12080, nvml.SUCCESS },
		DeviceGetCountFunc:                func() (int, nvml.Return) { return len(b.devices), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc:        func(i int) (nvml.Device, nvml.Return) { return b.devices[i], nvml.SUCCESS },
		ExtensionsFunc:                    func() nvml.ExtendedInterface { return symbols{} },
		EventSetCreateFunc:                b.create,
	}
	return b
}

func (b *board) create() (nvml.EventSet, nvml.Return) {
	b.sets++
	b.registered = nil
	return &mock.EventSet{
		FreeFunc: func() nvml.Return { b.freed++; return nvml.SUCCESS },
		WaitFunc: func(milliseconds uint32) (nvml.EventData, nvml.Return) {
			if b.inside != nil {
				b.inside()
			}
			select {
			case e := <-b.events:
				return e, b.result
			case <-time.After(time.Duration(milliseconds) * time.Millisecond):
				return nvml.EventData{}, nvml.ERROR_TIMEOUT
			}
		},
	}, nvml.SUCCESS
}

// read opens the session and reads all GPUs, as a Reader does.
func (b *board) read(t *testing.T) {
	t.Helper()
	_, n, err := b.library.Open()
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if _, err := b.library.GPU(i); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWaitEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t)
		if _, err := b.library.WaitEvent(time.Second); !errors.Is(err, gpu.ErrAbsent) || b.sets != 0 {
			t.Errorf("without a session: %v, %d sets", err, b.sets)
		}
		b.read(t)
		if _, err := b.library.WaitEvent(time.Second); !errors.Is(err, gpu.ErrNoEvent) {
			t.Errorf("nothing happened, and: %v", err)
		}
		fallen := gpu.Code{Kind: XID, Number: 79, Severity: gpu.Fatal, Text: "the GPU has fallen off the bus"}
		ecc := gpu.Code{Kind: gpu.DoubleBitECC, Severity: gpu.Driver, Text: "double-bit ECC error"}
		for _, tt := range []struct {
			name string
			data nvml.EventData
			want gpu.Event
		}{
			{"XID", nvml.EventData{Device: b.devices[1], EventType: nvml.EventTypeXidCriticalError, EventData: 79}, gpu.Event{GPU: "GPU-1", Code: fallen}},
			{"double bit", nvml.EventData{Device: b.devices[0], EventType: nvml.EventTypeDoubleBitEccError}, gpu.Event{GPU: "GPU-0", Code: ecc}},
			{"an unknown GPU", nvml.EventData{Device: device(), EventType: nvml.EventTypeXidCriticalError, EventData: 79}, gpu.Event{Code: fallen}},
			{"something else", nvml.EventData{Device: b.devices[0], EventType: nvml.EventTypePState}, gpu.Event{}},
		} {
			b.events <- tt.data
			got, err := b.library.WaitEvent(time.Second)
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("%s: %v, (-want +got):\n%s", tt.name, err, diff)
			}
		}
		if b.sets != 1 || len(b.registered) != 2 {
			t.Errorf("%d sets, the last with %v", b.sets, b.registered)
		}
	})
}

// A lost GPU makes every wait fail that has it: the next set is without it,
// and tried with it again later.
func TestWaitEventAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t)
		b.read(t)
		register := b.devices[0].RegisterEventsFunc
		b.devices[0].RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.ERROR_GPU_IS_LOST }
		b.result = nvml.ERROR_GPU_IS_LOST
		b.events <- nvml.EventData{}
		if _, err := b.library.WaitEvent(time.Second); !errors.Is(err, gpu.ErrLost) || b.freed != 1 {
			t.Errorf("%v, %d sets freed", err, b.freed)
		}
		b.result = nvml.SUCCESS
		for range 20 {
			b.library.WaitEvent(time.Second)
		}
		if diff := cmp.Diff([]string{"GPU-1"}, b.registered); diff != "" || b.sets != 2 {
			t.Errorf("%d sets, (-want +got):\n%s", b.sets, diff)
		}
		b.devices[0].RegisterEventsFunc = register
		for range 20 {
			b.library.WaitEvent(time.Second)
		}
		if len(b.registered) != 2 || b.sets != 3 || b.freed != 2 {
			t.Errorf("after half a minute: %v, %d sets made and %d freed", b.registered, b.sets, b.freed)
		}
	})
}

func TestWaitEventWithoutEvents(t *testing.T) {
	b := newBoard(t)
	b.read(t)
	for _, d := range b.devices {
		d.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return nvml.EventTypePState, nvml.SUCCESS }
	}
	if _, err := b.library.WaitEvent(time.Second); err == nil || errors.Is(err, gpu.ErrNoEvent) || b.freed != 1 {
		t.Errorf("GPUs that send no events: %v, %d sets freed", err, b.freed)
	}
}

// The session ends only when the wait has returned, and the next one has a
// set of its own.
func TestCloseWaitsForTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t)
		b.read(t)
		var wg sync.WaitGroup
		wg.Go(func() { b.library.WaitEvent(time.Second) })
		synctest.Wait()
		if _, err := b.library.WaitEvent(time.Second); err == nil || errors.Is(err, gpu.ErrAbsent) {
			t.Errorf("a second wait: %v", err)
		}
		began := time.Now()
		if err := b.library.Close(); err != nil || time.Since(began) != time.Second || b.freed != 1 {
			t.Errorf("closed after %s: %v, %d sets freed", time.Since(began), err, b.freed)
		}
		wg.Wait()
		if _, err := b.library.Pulse("GPU-0"); !errors.Is(err, gpu.ErrAbsent) {
			t.Errorf("a closed session knows a GPU: %v", err)
		}
		b.read(t)
		if _, err := b.library.WaitEvent(time.Second); !errors.Is(err, gpu.ErrNoEvent) || b.sets != 2 {
			t.Errorf("after it was opened again: %v, %d sets", err, b.sets)
		}
	})
}

// One that does not return keeps the session, and lets others in again.
func TestCloseGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBoard(t)
		release := make(chan struct{})
		b.read(t)
		b.inside = func() { <-release }
		var wg sync.WaitGroup
		wg.Go(func() { b.library.WaitEvent(time.Second) })
		synctest.Wait()
		began := time.Now()
		wg.Go(func() {
			if err := b.library.Close(); !errors.Is(err, gpu.ErrBusy) || time.Since(began) != gpu.CloseTimeout {
				t.Errorf("%v after %s", err, time.Since(began))
			}
		})
		synctest.Wait()
		if _, err := b.library.Pulse("GPU-0"); !errors.Is(err, gpu.ErrAbsent) {
			t.Errorf("a call entered while the session ends: %v", err)
		}
		<-time.After(2 * gpu.CloseTimeout)
		if _, err := b.library.Usage("GPU-7", 0); err == nil || errors.Is(err, errEnding) {
			t.Errorf("after the session could not be closed: %v", err)
		}
		close(release)
		wg.Wait()
	})
}

func TestPulse(t *testing.T) {
	answer := func(ret nvml.Return, value uint32) func([]nvml.FieldValue) nvml.Return {
		return func(values []nvml.FieldValue) nvml.Return {
			if len(values) != 1 || values[0].FieldId != 230 {
				t.Errorf("asked for %+v", values)
			}
			values[0].NvmlReturn = uint32(ret)
			binary.NativeEndian.PutUint32(values[0].Value[:], value)
			return nvml.SUCCESS
		}
	}
	all := func(ret nvml.Return) func([]nvml.FieldValue) nvml.Return {
		return func([]nvml.FieldValue) nvml.Return { return ret }
	}
	for _, tt := range []struct {
		name        string
		temperature nvml.Return
		fields      func([]nvml.FieldValue) nvml.Return
		want        gpu.Action
		err         string
	}{
		{"well", nvml.SUCCESS, answer(nvml.SUCCESS, 0), gpu.ActionNone, ""},
		{"a reset is wanted", nvml.SUCCESS, answer(nvml.SUCCESS, 1), ActionGPUReset, ""},
		{"an old driver", nvml.SUCCESS, answer(nvml.ERROR_NOT_SUPPORTED, 0), gpu.ActionUnknown, ""},
		{"a very old driver", nvml.SUCCESS, all(nvml.ERROR_INVALID_ARGUMENT), gpu.ActionUnknown, ""},
		{"no thermometer", nvml.ERROR_NOT_SUPPORTED, answer(nvml.SUCCESS, 0), gpu.ActionNone, ""},
		{"lost", nvml.ERROR_GPU_IS_LOST, nil, gpu.ActionUnknown, "temperature: GPU is lost"},
		{"lost between the questions", nvml.SUCCESS, all(nvml.ERROR_GPU_IS_LOST), gpu.ActionUnknown, "recovery action: GPU is lost"},
		{"lost, by the field", nvml.SUCCESS, answer(nvml.ERROR_GPU_IS_LOST, 0), gpu.ActionUnknown, "recovery action: GPU is lost"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBoard(t)
			b.read(t)
			b.devices[1].GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 40, tt.temperature }
			b.devices[1].GetFieldValuesFunc = tt.fields
			got, err := b.library.Pulse("GPU-1")
			text := ""
			if err != nil {
				text = err.Error()
			}
			if got != tt.want || text != tt.err || tt.err != "" && !errors.Is(err, gpu.ErrLost) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	b := newBoard(t)
	if _, err := b.library.Pulse("GPU-0"); !errors.Is(err, gpu.ErrAbsent) {
		t.Errorf("without a session: %v", err)
	}
}
