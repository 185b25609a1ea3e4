//go:build cgo && linux

package nvml

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/heddle-dev/heddle/api/machine"
)

// mig reads the multi-instance mode, and the instances that answer.
func mig(device nvml.Device, g *machine.GPU) error {
	current, _, ret := device.GetMigMode()
	if ret != nvml.SUCCESS {
		return fault("MIG mode", ret)
	}
	g.MIG.Capable, g.MIG.Enabled = true, current == nvml.DEVICE_MIG_ENABLE
	if !g.MIG.Enabled {
		return nil
	}
	most, ret := device.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return fault("number of MIG devices", ret)
	}
	var errs []error
	for i := range most {
		instance, ret := device.GetMigDeviceHandleByIndex(i)
		var d machine.MIGDevice
		if ret == nvml.SUCCESS {
			d, ret = migDevice(instance, g.MemoryMiB)
		}
		switch ret {
		case nvml.SUCCESS:
			g.MIG.Devices = append(g.MIG.Devices, d)
		case nvml.ERROR_NOT_FOUND: // It does not exist, or was just destroyed.
		default:
			errs = append(errs, fault(fmt.Sprintf("MIG device %d", i), ret))
		}
	}
	return errors.Join(errs...)
}

func migDevice(device nvml.Device, totalMiB int64) (machine.MIGDevice, nvml.Return) {
	id, ret := device.GetUUID()
	if ret != nvml.SUCCESS {
		return machine.MIGDevice{}, ret
	}
	a, ret := device.GetAttributes()
	if ret != nvml.SUCCESS {
		return machine.MIGDevice{}, ret
	}
	name, ret := device.GetName()
	if ret != nvml.SUCCESS && !absent(ret) {
		return machine.MIGDevice{}, ret
	}
	memory := mebibytes(a.MemorySizeMB << 20)
	slices, compute := int(a.GpuInstanceSliceCount), int(a.ComputeInstanceSliceCount)
	return machine.MIGDevice{
		UUID: id, Profile: migProfile(name, compute, slices, memory, totalMiB), MemoryMiB: memory,
		Multiprocessors: int(a.MultiprocessorCount), GPUSlices: slices, ComputeSlices: compute,
		CopyEngines: int(a.SharedCopyEngineCount), DecoderEngines: int(a.SharedDecoderCount),
		EncoderEngines: int(a.SharedEncoderCount), JPEGEngines: int(a.SharedJpegCount), OFAEngines: int(a.SharedOfaCount),
	}, nvml.SUCCESS
}
