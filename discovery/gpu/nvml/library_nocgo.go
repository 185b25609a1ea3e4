//go:build !cgo || !linux

package nvml

import (
	"fmt"

	"github.com/heddle-dev/heddle/api/machine"
)

// System returns a library that is absent: NVML is reached through cgo.
func System(string) SystemLibrary { return noLibrary{} }

type noLibrary struct{}

func (noLibrary) Open() (machine.Driver, int, error) {
	return machine.Driver{}, 0, fmt.Errorf("NVML is %w: built without cgo", ErrAbsent)
}

func (noLibrary) GPU(int) (machine.GPU, error) { return machine.GPU{}, ErrAbsent }

func (noLibrary) Close() error { return nil }
