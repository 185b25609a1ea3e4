//go:build cgo && linux

package nvml

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// GPU implements [gpu.Library]. Identity and memory must be readable; every other
// part may be unsupported, and an error of it is noted.
func (l *Library) GPU(index int) (machine.GPU, error) {
	g := machine.GPU{Index: index, Health: machine.Health{State: machine.Healthy}}
	device, ret := l.api.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return machine.GPU{}, failure(fmt.Sprintf("GPU %d", index), ret)
	}
	if err := identify(device, &g); err != nil {
		return g, err
	}
	l.remember(g.UUID, device)
	if memory, ret := device.GetMemoryInfo(); ret == nvml.SUCCESS {
		g.MemoryMiB = mebibytes(memory.Total)
	} else if !absent(ret) { // Unified memory: GB10, Jetson.
		return g, failure("memory", ret)
	}
	incomplete := gpu.IncompleteError{}
	minor, ret := device.GetMinorNumber()
	if ret == nvml.SUCCESS {
		g.Minor = &minor
	}
	incomplete.Note(gpu.PartMinor, fault("minor number", ret))
	major, revision, ret := device.GetCudaComputeCapability()
	if ret == nvml.SUCCESS {
		g.ComputeCapability, g.Architecture = fmt.Sprintf("%d.%d", major, revision), architecture(major, revision)
	}
	incomplete.Note(gpu.PartCapability, fault("compute capability", ret))
	ecc, _, ret := device.GetEccMode()
	if ret == nvml.SUCCESS {
		g.ECC = new(ecc == nvml.FEATURE_ENABLED)
	}
	incomplete.Note(gpu.PartECC, fault("ECC mode", ret))
	incomplete.Note(gpu.PartLinks, l.links(device, &g))
	incomplete.Note(gpu.PartVGPU, l.virtual(device, &g))
	incomplete.Note(gpu.PartMIG, mig(device, &g))
	incomplete.Note(gpu.PartFabric, l.fabric(device, &g))
	return g, incomplete.Err()
}

// absent reports whether an answer means that a GPU or its driver lacks
// something. Every other failure is not about the GPU.
func absent(ret nvml.Return) bool {
	return ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_FUNCTION_NOT_FOUND
}

// fault is the error of a part; nil if it was read, or the GPU lacks it.
func fault(what string, ret nvml.Return) error {
	if ret == nvml.SUCCESS || absent(ret) {
		return nil
	}
	return failure(what, ret)
}

// identify reads what answers of a GPU's identity: one that was lost may know a part of it.
func identify(device nvml.Device, g *machine.GPU) error {
	var errs [3]error
	var ret nvml.Return
	if g.UUID, ret = device.GetUUID(); ret != nvml.SUCCESS {
		g.UUID, errs[0] = "", failure("UUID", ret)
	}
	if pci, ret := device.GetPciInfo(); ret != nvml.SUCCESS {
		errs[1] = failure("PCI address", ret)
	} else {
		g.PCI, errs[1] = parseBusID(cString(pci.BusId[:]))
	}
	if g.Product, ret = device.GetName(); ret != nvml.SUCCESS {
		g.Product, errs[2] = "", failure("name", ret)
	}
	return cmp.Or(errs[0], errs[1], errs[2])
}

// virtual reads the host's vGPU software.
func (l *Library) virtual(device nvml.Device, g *machine.GPU) error {
	mode, ret := device.GetVirtualizationMode()
	if ret != nvml.SUCCESS || mode != nvml.GPU_VIRTUALIZATION_MODE_VGPU {
		return fault("virtualization mode", ret)
	}
	host, err := vgpu(sysfs.New(l.options.SysfsRoot), g.PCI)
	g.VGPU = cmp.Or(host, &machine.VGPU{})
	return err
}

func mebibytes(n uint64) int64 { return int64(n >> 20) }

// cString returns a C string in a field of fixed size.
func cString(b []int8) string {
	s := make([]byte, 0, len(b))
	for _, c := range b {
		if c == 0 {
			break
		}
		s = append(s, byte(c)) //nolint:gosec // C's char is a byte.
	}
	return string(s)
}

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
