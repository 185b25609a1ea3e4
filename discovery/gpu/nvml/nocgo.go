//go:build !cgo || !linux

package nvml

import (
	"errors"
	"fmt"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Library is absent: NVML is reached through cgo.
type Library struct{}

// New returns a library that is absent.
func New(Options) *Library { return &Library{} }

// Open implements [gpu.Library].
func (*Library) Open() (machine.Driver, int, error) {
	return machine.Driver{}, 0, fmt.Errorf("NVML is %w: built without cgo", gpu.ErrAbsent)
}

// GPU implements [gpu.Library].
func (*Library) GPU(int) (machine.GPU, error) { return machine.GPU{}, gpu.ErrAbsent }

// Close implements [gpu.Library].
func (*Library) Close() error { return nil }

// WaitEvent implements [gpu.Telemetry].
func (*Library) WaitEvent(time.Duration) (gpu.Event, error) { return gpu.Event{}, gpu.ErrAbsent }

// Known implements [gpu.Telemetry].
func (*Library) Known() []string { return nil }

// Pulse implements [gpu.Telemetry].
func (*Library) Pulse(string) (gpu.Action, error) { return gpu.ActionUnknown, gpu.ErrAbsent }

// Usage implements [gpu.Telemetry].
func (*Library) Usage(string, uint64) (gpu.Usage, error) { return gpu.Usage{}, gpu.ErrAbsent }

// ExclusiveProcess needs NVML.
func (*Library) ExclusiveProcess(string, bool) error { return gpu.ErrAbsent }

// Generate implements [gpu.EditsGenerator].
func (CDI) Generate(*machine.Machine) (*gpu.Edits, error) {
	return nil, errors.New("this build has no cgo, and so cannot ask the driver")
}
