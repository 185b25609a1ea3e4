//go:build !cgo || !linux

package nvml

import (
	"fmt"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Library is absent: NVML is reached through cgo.
type Library struct{}

// New returns a library that is absent.
func New(gpu.Options) *Library { return &Library{} }

// Open implements [gpu.Library].
func (*Library) Open() (machine.Driver, int, error) {
	return machine.Driver{}, 0, fmt.Errorf("NVML is %w: built without cgo", gpu.ErrAbsent)
}

// GPU implements [gpu.Library].
func (*Library) GPU(int) (machine.GPU, error) { return machine.GPU{}, gpu.ErrAbsent }

// Close implements [gpu.Library].
func (*Library) Close() error { return nil }
