//go:build cgo && linux

package nvml

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sync/semaphore"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Library is NVML behind heddle's interface.
type Library struct {
	options gpu.Options
	// gate keeps the session open under calls that the reader does not know of,
	// since ending it unmaps the library: each takes one, and Close all.
	gate *semaphore.Weighted
	// watched is the event set of WaitEvent; waiting is held during a wait.
	waiting sync.Mutex
	watched watched
	// peers are the known peers of links, in this session.
	peers sync.Map
	// mu guards what follows. It is not held across calls into NVML: one
	// that hangs must not keep the others from finding out.
	mu sync.Mutex
	// api is nil until load found a library to call, at path; empty leaves that
	// to the dynamic loader.
	api  nvml.Interface
	path string
	// loaded belongs to Open, which is never called twice at once.
	loaded loaded
	// devices are the handles of the GPUs that were read in this session, by
	// UUID; nil without a session. generation changes with them.
	devices    map[string]nvml.Device
	generation int
}

// New returns the NVML of this machine. It is not loaded before Open.
func New(o gpu.Options) *Library {
	return &Library{options: o, gate: semaphore.NewWeighted(allCalls)}
}

const allCalls = 1 << 30

// load makes the interface on first use: a driver container may mount its root
// after the daemon started.
func (l *Library) load() (nvml.Interface, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.api != nil {
		return l.api, nil
	}
	if byLoader(l.options) {
		l.api = nvml.New()
		return l.api, nil
	}
	_, _, file, err := find(l.options)
	if err != nil {
		return nil, err
	}
	l.path, l.api = file, nvml.New(nvml.WithLibraryPath(file))
	return l.api, nil
}

// unload lets the next load look again: this process cannot use the library that was found,
// load, as in the middle of an upgrade.
func (l *Library) unload() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.api, l.path = nil, ""
}

// handles returns the GPUs of the open session; nil without one.
func (l *Library) handles() (map[string]nvml.Device, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.devices), l.generation
}

// reset begins a session without handles, or ends one with nil.
func (l *Library) reset(devices map[string]nvml.Device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.devices = devices
	l.generation++
	l.peers.Clear()
}

// remember keeps the handle of a GPU, by its UUID.
func (l *Library) remember(uuid string, device nvml.Device) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.devices[uuid]; !ok || known != device {
		l.devices[uuid] = device
		l.generation++
	}
}

// enter lets a call about a GPU or a MIG device into the open session, which is not ended until
// the gate is left.
func (l *Library) enter(uuid string) (nvml.Device, error) {
	if !l.gate.TryAcquire(1) {
		return nil, errEnding
	}
	handles, _ := l.handles()
	device, ok := handles[uuid]
	if !ok && handles != nil && strings.HasPrefix(uuid, "MIG-") {
		var ret nvml.Return
		device, ret = l.api.DeviceGetHandleByUUID(uuid)
		ok = ret == nvml.SUCCESS
	}
	if !ok {
		l.leave()
		return nil, fmt.Errorf("GPU %s is %w: no session has read it", uuid, gpu.ErrAbsent)
	}
	return device, nil
}

func (l *Library) leave() { l.gate.Release(1) }

var errEnding = fmt.Errorf("NVML is %w: the session is ending", gpu.ErrAbsent)

// Open implements [gpu.Library].
func (l *Library) Open() (machine.Driver, int, error) {
	if err := l.loaded.stale(l.options); err != nil {
		return machine.Driver{}, 0, err
	}
	l.loaded.look(l.options)
	api, err := l.load()
	if err != nil {
		return machine.Driver{}, 0, err
	}
	if handles, _ := l.handles(); handles == nil {
		ret := api.Init()
		if ret == nvml.ERROR_LIBRARY_NOT_FOUND {
			l.unload()
		} else {
			l.loaded.note(l.path)
		}
		if err := failure("initialize NVML", ret); ret != nvml.SUCCESS {
			return machine.Driver{}, 0, l.loaded.absent(l.options, err)
		}
		l.loaded.reached()
		l.reset(map[string]nvml.Device{})
	}
	var driver machine.Driver
	// These are the library's own, and stay when one call fails.
	if version, ret := api.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		l.loaded.version = version
	}
	driver.Version = l.loaded.version
	if cuda, ret := api.SystemGetCudaDriverVersion_v2(); ret == nvml.SUCCESS {
		l.loaded.cuda = cudaVersion(cuda)
	}
	driver.CUDA = l.loaded.cuda
	count, ret := api.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return driver, 0, failure("count GPUs", ret)
	}
	return driver, count, nil
}

// Close implements [gpu.Library]. It waits for polls and event waits, briefly.
func (l *Library) Close() error {
	if handles, _ := l.handles(); handles == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), gpu.CloseTimeout)
	defer cancel()
	// Who waits for all keeps new calls out.
	if l.gate.Acquire(ctx, allCalls) != nil {
		return fmt.Errorf("close NVML: %w", gpu.ErrBusy)
	}
	defer l.gate.Release(allCalls)
	l.disarm()
	l.reset(nil)
	if ret := l.api.Shutdown(); ret != nvml.SUCCESS && ret != nvml.ERROR_UNINITIALIZED {
		return failure("shut NVML down", ret)
	}
	return nil
}

// has reports whether the library has a function. Calling one that it lacks,
// because the driver is older than the headers of this build, ends the process: the symbols
// are bound when first called.
func (l *Library) has(symbol string) bool { return l.api.Extensions().LookupSymbol(symbol) == nil }

// failure is a Return as heddle's error: absent, lost, or what NVML calls it.
func failure(what string, ret nvml.Return) error {
	switch ret { //nolint:exhaustive // The others have their names.
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("NVML is %w: no libnvidia-ml.so.1", gpu.ErrAbsent)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("NVML is %w: the NVIDIA driver is not loaded", gpu.ErrAbsent)
	case nvml.ERROR_GPU_IS_LOST:
		return fmt.Errorf("%s: GPU is %w", what, gpu.ErrLost)
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fmt.Errorf("%s: %s: load the kernel module of the library's version, or reboot", what, ret.Error())
	}
	return fmt.Errorf("%s: %s", what, ret.Error())
}
