//go:build cgo && linux

package nvml

import (
	"errors"
	"testing"

	"github.com/heddle-dev/heddle/discovery/gpu"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
)

func TestExclusiveProcess(t *testing.T) {
	b := newBoard(t)
	mode := nvml.COMPUTEMODE_DEFAULT
	var sets []nvml.ComputeMode
	result := nvml.SUCCESS
	b.devices[0].GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return mode, nvml.SUCCESS }
	b.devices[0].SetComputeModeFunc = func(m nvml.ComputeMode) nvml.Return {
		if result == nvml.SUCCESS {
			mode = m
		}
		sets = append(sets, m)
		return result
	}
	if err := b.library.ExclusiveProcess("GPU-0", true); !errors.Is(err, gpu.ErrAbsent) {
		t.Errorf("before a session: %v", err)
	}
	if _, _, err := b.library.Open(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.library.GPU(0); err != nil {
		t.Fatal(err)
	}
	for _, on := range []bool{true, true, false} {
		if err := b.library.ExclusiveProcess("GPU-0", on); err != nil {
			t.Error(err)
		}
	}
	want := []nvml.ComputeMode{nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, nvml.COMPUTEMODE_DEFAULT}
	if diff := cmp.Diff(want, sets); diff != "" {
		t.Errorf("modes that were set, each once (-want +got):\n%s", diff)
	}
	result = nvml.ERROR_NO_PERMISSION
	if err := b.library.ExclusiveProcess("GPU-0", true); err == nil {
		t.Error("no permission, and no error")
	}
	if err := b.library.ExclusiveProcess("GPU-1", true); !errors.Is(err, gpu.ErrAbsent) {
		t.Errorf("a GPU that was never read: %v", err)
	}
}
