//go:build !cgo || !linux

package gpu

import (
	"errors"

	"github.com/heddle-dev/heddle/api/machine"
)

// Generate implements [Generator]: NVML needs cgo.
func (NVCDI) Generate(*machine.Machine) (*Generated, error) {
	return nil, errors.New("this build has no cgo, and so cannot ask the driver")
}
