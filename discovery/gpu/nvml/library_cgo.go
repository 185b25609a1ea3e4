//go:build cgo && linux

package nvml

import (
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/heddle-dev/heddle/api/machine"
)

// System returns the NVML of this machine: under root, or found by the dynamic
// loader where root is empty. It is not loaded before Open.
func System(root string) SystemLibrary { return &library{root: root} }

// library is NVML behind our interface.
type library struct {
	root string
	// api is nil until load found a library to call.
	api nvml.Interface
	// gate keeps the session open under pings and waits for events.
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

func (l *library) isOpen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

func (l *library) setOpen(open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = open
}

// Open implements Library.
func (l *library) Open() (machine.Driver, int, error) {
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

// Close implements Library. It waits for pings and event waits, briefly.
func (l *library) Close() error {
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

// has tells whether the library has a function. Calling one that it lacks,
// because the driver is older than our headers, ends the process: the symbols
// are bound when first called.
func (l *library) has(symbol string) bool {
	return l.api.Extensions().LookupSymbol(symbol) == nil
}

// failure is a Return in our words: absent, lost, or what NVML calls it.
func failure(what string, ret nvml.Return) error {
	switch ret { //nolint:exhaustive // The others have their names.
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("NVML is %w: no libnvidia-ml.so.1", ErrAbsent)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("NVML is %w: the NVIDIA driver is not loaded", ErrAbsent)
	case nvml.ERROR_GPU_IS_LOST:
		return fmt.Errorf("%s: GPU is %w", what, ErrLost)
	}
	return fmt.Errorf("%s: %s", what, ret.Error())
}
