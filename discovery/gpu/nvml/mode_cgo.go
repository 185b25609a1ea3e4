//go:build cgo && linux

package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ExclusiveProcess implements ModeLibrary.
func (l *library) ExclusiveProcess(uuid string, on bool) error {
	if !l.gate.enter() {
		return fmt.Errorf("NVML is %w: the session is ending", ErrAbsent)
	}
	defer l.gate.leave()
	handles, _ := l.handles()
	device, ok := handles[uuid]
	if !ok || !l.isOpen() {
		return fmt.Errorf("GPU %s is %w: no session has read it", uuid, ErrAbsent)
	}
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
