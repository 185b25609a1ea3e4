//go:build cgo && linux

package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Library is NVML behind heddle's interface.
type Library struct {
	options Options
	// api is nil until load found a library to call.
	api nvml.Interface
	// gate keeps the session open under polls and waits for events.
	gate gate
	// watched is what WaitEvent waits with; waiting is held by the one that does.
	waiting sync.Mutex
	watched watched
	// mu guards api and what follows. It is not held across calls into NVML: one
	// that hangs must not keep the others from finding out.
	mu   sync.Mutex
	open bool
	// devices are the handles of the GPUs that were read in this session, by
	// UUID; generation changes with them.
	devices    map[string]nvml.Device
	generation int
}

// New returns the NVML of this machine. It is not loaded before Open.
func New(o Options) *Library { return &Library{options: o} }

// libraryName is the name that every driver package installs.
const libraryName = "libnvidia-ml.so.1"

// libraryIn finds the library under a driver's root, in the directories of
// Debian's and Red Hat's packages and of driver containers. The dynamic loader
// does not look there, and LD_LIBRARY_PATH would bring the host's libc along.
func libraryIn(root string) (string, error) {
	dirs := []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib"}
	for _, dir := range dirs {
		path := filepath.Join(root, dir, libraryName)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: no %s under %s", gpu.ErrAbsent, libraryName, root)
}

// load makes the interface on first use: a driver container may mount its root
// after the daemon started.
func (l *Library) load() (nvml.Interface, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.api != nil {
		return l.api, nil
	}
	if l.options.DriverRoot == "" {
		l.api = nvml.New()
		return l.api, nil
	}
	path, err := libraryIn(l.options.DriverRoot)
	if err != nil {
		return nil, err
	}
	l.api = nvml.New(nvml.WithLibraryPath(path))
	return l.api, nil
}

func (l *Library) isOpen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

func (l *Library) setOpen(open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = open
}

// enter lets a call about a GPU into the open session, which is not ended until
// the gate is left.
func (l *Library) enter(uuid string) (nvml.Device, error) {
	if !l.gate.enter() {
		return nil, fmt.Errorf("NVML is %w: the session is ending", gpu.ErrAbsent)
	}
	handles, _ := l.handles()
	device, ok := handles[uuid]
	if !ok || !l.isOpen() {
		l.gate.leave()
		return nil, fmt.Errorf("GPU %s is %w: no session has read it", uuid, gpu.ErrAbsent)
	}
	return device, nil
}

// Open implements [gpu.Library].
func (l *Library) Open() (machine.Driver, int, error) {
	api, err := l.load()
	if err != nil {
		return machine.Driver{}, 0, err
	}
	if !l.isOpen() {
		if ret := api.Init(); ret != nvml.SUCCESS {
			return machine.Driver{}, 0, failure("initialize NVML", ret)
		}
		l.setOpen(true)
	}
	var driver machine.Driver
	version, ret := api.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return driver, 0, failure("driver version", ret)
	}
	driver.Version = version
	if cuda, ret := api.SystemGetCudaDriverVersion_v2(); ret == nvml.SUCCESS {
		driver.CUDA = cudaVersion(cuda)
	}
	count, ret := api.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return driver, 0, failure("count GPUs", ret)
	}
	return driver, count, nil
}

// Close implements [gpu.Library]. It waits for polls and event waits, briefly.
func (l *Library) Close() error {
	if !l.isOpen() {
		return nil
	}
	if err := l.gate.close(closeTimeout); err != nil {
		return fmt.Errorf("close NVML: %w", err)
	}
	defer l.gate.open()
	l.disarm()
	l.forget()
	l.setOpen(false)
	if ret := l.api.Shutdown(); ret != nvml.SUCCESS && ret != nvml.ERROR_UNINITIALIZED {
		return failure("shut NVML down", ret)
	}
	return nil
}

// has reports whether the library has a function. Calling one that it lacks,
// because the driver is older than the headers of this build, ends the process: the symbols
// are bound when first called.
func (l *Library) has(symbol string) bool {
	return l.api.Extensions().LookupSymbol(symbol) == nil
}

// failure is a Return as heddle's error: absent, lost, or what NVML calls it.
func failure(what string, ret nvml.Return) error {
	switch ret { //nolint:exhaustive // The others have their names.
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("NVML is %w: no libnvidia-ml.so.1", gpu.ErrAbsent)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("NVML is %w: the NVIDIA driver is not loaded", gpu.ErrAbsent)
	case nvml.ERROR_GPU_IS_LOST:
		return fmt.Errorf("%s: GPU is %w", what, gpu.ErrLost)
	}
	return fmt.Errorf("%s: %s", what, ret.Error())
}

// ExclusiveProcess lets one process at a time have contexts on the GPU
// (NVML_COMPUTEMODE_EXCLUSIVE_PROCESS), or any number (DEFAULT): the only thing
// of a GPU that this package changes, and only when asked. It uses the session
// that a reader opened, needs root, and may block for ever.
func (l *Library) ExclusiveProcess(uuid string, on bool) error {
	device, err := l.enter(uuid)
	if err != nil {
		return err
	}
	defer l.gate.leave()
	want := nvml.COMPUTEMODE_DEFAULT
	if on {
		want = nvml.COMPUTEMODE_EXCLUSIVE_PROCESS
	}
	if mode, ret := device.GetComputeMode(); ret == nvml.SUCCESS && mode == want {
		return nil
	}
	if ret := device.SetComputeMode(want); ret != nvml.SUCCESS {
		return failure("set the compute mode of GPU "+uuid, ret)
	}
	return nil
}
