//go:build cgo && linux

package nvml

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// GPU implements [gpu.Library]. Identity must be readable; everything else may be
// unsupported and then stays unknown.
func (l *Library) GPU(index int) (machine.GPU, error) {
	g := machine.GPU{Index: index, Health: machine.Health{State: machine.Healthy}}
	device, ret := l.api.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return machine.GPU{}, failure(fmt.Sprintf("GPU %d", index), ret)
	}
	if err := identify(device, &g); err != nil {
		return machine.GPU{}, err
	}
	l.remember(g.UUID, device)
	if memory, ret := device.GetMemoryInfo(); ret == nvml.SUCCESS {
		g.MemoryMiB = mebibytes(memory.Total)
	} else if ret != nvml.ERROR_NOT_SUPPORTED { // Unified memory: GB10, Jetson.
		return machine.GPU{}, failure("memory", ret)
	}
	if major, minor, ret := device.GetCudaComputeCapability(); ret == nvml.SUCCESS {
		g.ComputeCapability, g.Architecture = fmt.Sprintf("%d.%d", major, minor), architecture(major, minor)
	}
	if current, _, ret := device.GetEccMode(); ret == nvml.SUCCESS {
		g.ECC = new(current == nvml.FEATURE_ENABLED)
	}
	var incomplete error
	if mode, ret := device.GetVirtualizationMode(); ret == nvml.SUCCESS && mode == nvml.GPU_VIRTUALIZATION_MODE_VGPU {
		g.VGPU = &machine.VGPU{}
		host, err := vgpu(sysfs.New(l.options.SysfsRoot), g.PCI)
		if err != nil {
			incomplete = fmt.Errorf("vGPU is %w: %w", gpu.ErrIncomplete, err)
		}
		g.VGPU = cmp.Or(host, g.VGPU)
	}
	g.MIG = migMode(device, g.MemoryMiB)
	if l.has("nvmlDeviceGetGpuFabricInfo") { // Since driver 525.
		g.Fabric, g.Health = fabric(device)
	}
	if l.has("nvmlDeviceGetNvLinkRemoteDeviceType") { // Since driver 460.
		g.NVLinks = links(device)
	}
	return g, incomplete
}

func identify(device nvml.Device, g *machine.GPU) error {
	var ret nvml.Return
	if g.UUID, ret = device.GetUUID(); ret != nvml.SUCCESS {
		return failure("UUID", ret)
	}
	pci, ret := device.GetPciInfo()
	if ret != nvml.SUCCESS {
		return failure("PCI address", ret)
	}
	var err error
	if g.PCI, err = parseBusID(cString(pci.BusId[:])); err != nil {
		return err
	}
	if g.Product, ret = device.GetName(); ret != nvml.SUCCESS {
		return failure("name", ret)
	}
	if minor, ret := device.GetMinorNumber(); ret == nvml.SUCCESS {
		g.Minor = &minor
	}
	return nil
}

func migMode(device nvml.Device, totalMiB int64) machine.MIG {
	var mig machine.MIG
	current, _, ret := device.GetMigMode()
	if ret != nvml.SUCCESS {
		return mig
	}
	mig.Capable, mig.Enabled = true, current == nvml.DEVICE_MIG_ENABLE
	if !mig.Enabled {
		return mig
	}
	most, ret := device.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return mig
	}
	for i := range most {
		// Indices of instances that were destroyed answer NOT_FOUND.
		instance, ret := device.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		if d, ok := migDevice(instance, totalMiB); ok {
			mig.Devices = append(mig.Devices, d)
		}
	}
	return mig
}

func migDevice(device nvml.Device, totalMiB int64) (machine.MIGDevice, bool) {
	id, ret := device.GetUUID()
	if ret != nvml.SUCCESS {
		return machine.MIGDevice{}, false
	}
	a, ret := device.GetAttributes()
	if ret != nvml.SUCCESS {
		return machine.MIGDevice{}, false
	}
	name, ret := device.GetName()
	if ret != nvml.SUCCESS {
		name = ""
	}
	memory := mebibytes(a.MemorySizeMB << 20)
	slices, compute := int(a.GpuInstanceSliceCount), int(a.ComputeInstanceSliceCount)
	return machine.MIGDevice{
		UUID: id, Profile: migProfile(name, compute, slices, memory, totalMiB), MemoryMiB: memory,
		Multiprocessors: int(a.MultiprocessorCount), GPUSlices: slices, ComputeSlices: compute,
		CopyEngines: int(a.SharedCopyEngineCount), DecoderEngines: int(a.SharedDecoderCount),
		EncoderEngines: int(a.SharedEncoderCount), JPEGEngines: int(a.SharedJpegCount), OFAEngines: int(a.SharedOfaCount),
	}, true
}

// fabric reads the registration with the NVLink fabric. A registration that
// completed with an error leaves a GPU that cannot run CUDA (error 802).
func fabric(device nvml.Device) (*machine.Fabric, machine.Health) {
	healthy := machine.Health{State: machine.Healthy}
	info, ret := device.GetGpuFabricInfo()
	if ret != nvml.SUCCESS || info.State == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
		return nil, healthy
	}
	f := &machine.Fabric{ClusterUUID: uuid(info.ClusterUuid), CliqueID: info.CliqueId}
	switch info.State {
	case nvml.GPU_FABRIC_STATE_COMPLETED:
		f.State = machine.FabricCompleted
		if status := nvml.Return(info.Status); status != nvml.SUCCESS { //nolint:gosec // NVML's own cast.
			return f, machine.Health{
				State:  machine.Unhealthy,
				Reason: "NVLink fabric registration: " + status.Error(),
			}
		}
	case nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		f.State = machine.FabricInProgress
	default:
		f.State = machine.FabricNotStarted
	}
	return f, healthy
}

// links are the active NVLinks, summed by peer. The first link that the GPU does
// not have answers INVALID_ARGUMENT or NOT_SUPPORTED.
func links(device nvml.Device) []machine.NVLink {
	count := map[string]int{}
	for i := range nvml.NVLINK_MAX_LINKS {
		state, ret := device.GetNvLinkState(i)
		if ret != nvml.SUCCESS {
			break
		}
		if state != nvml.FEATURE_ENABLED {
			continue
		}
		if peer := linkPeer(device, i); peer != "" {
			count[peer]++
		}
	}
	if len(count) == 0 {
		return nil
	}
	return sumLinks(count, linkSpeed(device))
}

// linkPeer is what a link ends in; "" if NVML does not report it.
func linkPeer(device nvml.Device, i int) string {
	kind, ret := device.GetNvLinkRemoteDeviceType(i)
	if ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
		return machine.PeerNVSwitch
	}
	pci, ret := device.GetNvLinkRemotePciInfo(i)
	if ret != nvml.SUCCESS {
		return ""
	}
	address, err := parseBusID(cString(pci.BusId[:]))
	if err != nil {
		return ""
	}
	return address
}

// linkSpeed is the speed of the active links, in 10^6 bytes a second and one
// direction; 0 if unknown.
func linkSpeed(device nvml.Device) int64 {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON}, {FieldId: nvml.FI_DEV_NVLINK_GET_SPEED}}
	if ret := device.GetFieldValues(values); ret != nvml.SUCCESS {
		return 0
	}
	for _, v := range values {
		if nvml.Return(v.NvmlReturn) == nvml.SUCCESS { //nolint:gosec // NVML's own cast.
			if speed := binary.NativeEndian.Uint32(v.Value[:]); speed > 0 && speed < 1<<24 {
				return int64(speed)
			}
		}
	}
	return 0
}

func mebibytes(n uint64) int64 { return int64(n >> 20) }

// cString is a C string in a field of fixed size.
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
