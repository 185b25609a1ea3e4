//go:build cgo && linux

package nvml

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// symbols answers which functions the driver's library has: all but one, and the
// one that go-nvml's mock cannot play.
type symbols struct {
	nvml.ExtendedInterface
	missing string
}

func (s symbols) LookupSymbol(name string) error {
	if name == s.missing || name == "nvmlDeviceGetGpuFabricInfoV" {
		return errors.New("no such symbol")
	}
	return nil
}

func busID(s string) (pci nvml.PciInfo) {
	for i := range s {
		pci.BusId[i] = int8(s[i])
	}
	return pci
}

// device answers as an H100 in a DGX does.
func device() *mock.Device {
	return &mock.Device{
		GetUUIDFunc:        func() (string, nvml.Return) { return "GPU-1", nvml.SUCCESS },
		GetPciInfoFunc:     func() (nvml.PciInfo, nvml.Return) { return busID("00000000:1B:00.0"), nvml.SUCCESS },
		GetNameFunc:        func() (string, nvml.Return) { return "NVIDIA H100 80GB HBM3", nvml.SUCCESS },
		GetMinorNumberFunc: func() (int, nvml.Return) { return 0, nvml.SUCCESS },
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
			return nvml.Memory{Total: 81559 << 20}, nvml.SUCCESS
		},
		GetCudaComputeCapabilityFunc: func() (int, int, nvml.Return) { return 9, 0, nvml.SUCCESS },
		GetEccModeFunc: func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
			return nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED, nvml.SUCCESS
		},
		GetVirtualizationModeFunc: func() (nvml.GpuVirtualizationMode, nvml.Return) {
			return nvml.GPU_VIRTUALIZATION_MODE_NONE, nvml.SUCCESS
		},
		GetMigModeFunc: func() (int, int, nvml.Return) {
			return nvml.DEVICE_MIG_DISABLE, nvml.DEVICE_MIG_DISABLE, nvml.SUCCESS
		},
		GetGpuFabricInfoFunc: func() (nvml.GpuFabricInfo, nvml.Return) {
			return nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_COMPLETED}, nvml.SUCCESS
		},
		GetNvLinkStateFunc: func(link int) (nvml.EnableState, nvml.Return) {
			if link >= 18 {
				return 0, nvml.ERROR_INVALID_ARGUMENT
			}
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		},
		GetNvLinkRemoteDeviceTypeFunc: func(int) (nvml.IntNvLinkDeviceType, nvml.Return) {
			return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
		},
		GetFieldValuesFunc: func(values []nvml.FieldValue) nvml.Return {
			values[0].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
			binary.NativeEndian.PutUint32(values[1].Value[:], 26562)
			return nvml.SUCCESS
		},
	}
}

func of(d nvml.Device, missing string) *Library {
	l := New(gpu.Options{})
	l.api = &mock.Interface{
		DeviceGetHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) { return d, nvml.SUCCESS },
		ExtensionsFunc:             func() nvml.ExtendedInterface { return symbols{missing: missing} },
	}
	l.reset(map[string]nvml.Device{})
	return l
}

func TestGPU(t *testing.T) {
	got, err := of(device(), "").GPU(1)
	if err != nil {
		t.Fatal(err)
	}
	want := machine.GPU{
		UUID: "GPU-1", Index: 1, Minor: new(0), PCI: "0000:1b:00.0", Product: "NVIDIA H100 80GB HBM3", Architecture: "hopper",
		ComputeCapability: "9.0", MemoryMiB: 81559, ECC: new(true), MIG: machine.MIG{Capable: true},
		NVLinks: []machine.NVLink{{Peer: machine.PeerNVSwitch, Links: 18, MBps: new(int64(18 * 26562))}},
		Fabric:  &machine.Fabric{ClusterUUID: "00000000-0000-0000-0000-000000000000", State: machine.FabricCompleted},
		Health:  machine.Health{State: machine.Healthy},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An old driver lacks the functions of newer ones, and must not be asked: a
// call of a missing function ends the process. The mock panics likewise.
func TestGPUOfAnOldDriver(t *testing.T) {
	d := device()
	d.GetGpuFabricInfoFunc = nil
	got, err := of(d, "nvmlDeviceGetGpuFabricInfo").GPU(0)
	if err != nil || got.Fabric != nil {
		t.Errorf("fabric %v, %v", got.Fabric, err)
	}
}

func TestGPUFailures(t *testing.T) {
	d := device()
	d.GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
	if _, err := of(d, "").GPU(0); !errors.Is(err, gpu.ErrLost) {
		t.Errorf("lost GPU: %v", err)
	}
	d = device()
	d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED }
	if g, err := of(d, "").GPU(0); err != nil || g.MemoryMiB != 0 {
		t.Errorf("unified memory: %d MiB, %v", g.MemoryMiB, err)
	}
	d = device()
	d.GetGpuFabricInfoFunc = func() (nvml.GpuFabricInfo, nvml.Return) {
		return nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_COMPLETED, Status: uint32(nvml.ERROR_UNKNOWN)}, nvml.SUCCESS
	}
	g, err := of(d, "").GPU(0)
	if err != nil || g.Health.State != machine.Healthy || g.Fabric.State != machine.FabricFailed || g.Fabric.Reason == "" {
		t.Errorf("failed fabric registration: %+v, %+v, %v", g.Health, g.Fabric, err)
	}
}

// A link's peer is asked for once in a session, and its state each time.
func TestPeersOfLinks(t *testing.T) {
	d := device()
	kind, asked := d.GetNvLinkRemoteDeviceTypeFunc, 0
	d.GetNvLinkRemoteDeviceTypeFunc = func(link int) (nvml.IntNvLinkDeviceType, nvml.Return) {
		asked++
		return kind(link)
	}
	library := of(d, "")
	first, err := library.GPU(0)
	again, errAgain := library.GPU(0)
	if diff := cmp.Diff(first, again); diff != "" || err != nil || errAgain != nil || asked != 18 {
		t.Errorf("asked %d times, %v, %v (-first +again):\n%s", asked, err, errAgain, diff)
	}
	library.reset(nil)
	library.reset(map[string]nvml.Device{})
	if _, err := library.GPU(0); err != nil || asked != 36 {
		t.Errorf("the next session asked %d times: %v", asked-18, err)
	}
}

// A link or a peer that does not answer is named, and costs no other link.
func TestBadLinks(t *testing.T) {
	d := device()
	state, kind := d.GetNvLinkStateFunc, d.GetNvLinkRemoteDeviceTypeFunc
	d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
		switch link {
		case 0:
			return 0, nvml.ERROR_UNKNOWN
		case 1:
			return 0, nvml.ERROR_NOT_SUPPORTED
		case 2:
			return nvml.FEATURE_DISABLED, nvml.SUCCESS
		}
		return state(link)
	}
	d.GetNvLinkRemoteDeviceTypeFunc = func(link int) (nvml.IntNvLinkDeviceType, nvml.Return) {
		if link == 3 {
			return 0, nvml.ERROR_UNKNOWN
		}
		return kind(link)
	}
	got, err := of(d, "").GPU(0)
	if len(got.NVLinks) != 1 || got.NVLinks[0].Links != 14 {
		t.Errorf("%+v, want 14 of 18 links", got.NVLinks)
	}
	const want = "links: NVLink 0: ERROR_UNKNOWN, peer of NVLink 3: ERROR_UNKNOWN"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestMIGDevices(t *testing.T) {
	d := device()
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS }
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		switch i {
		case 1:
			return nil, nvml.ERROR_UNKNOWN
		case 0, 3, 4, 5, 6:
			return nil, nvml.ERROR_NOT_FOUND
		}
		return &mock.Device{
			GetUUIDFunc: func() (string, nvml.Return) { return "MIG-2", nvml.SUCCESS },
			GetNameFunc: func() (string, nvml.Return) { return "NVIDIA H100 80GB HBM3 MIG 3g.40gb", nvml.SUCCESS },
			GetAttributesFunc: func() (nvml.DeviceAttributes, nvml.Return) {
				return nvml.DeviceAttributes{
					MultiprocessorCount: 60, GpuInstanceSliceCount: 3, ComputeInstanceSliceCount: 3, MemorySizeMB: 40448,
					SharedCopyEngineCount: 3, SharedDecoderCount: 3, SharedJpegCount: 3,
				}, nvml.SUCCESS
			},
		}, nvml.SUCCESS
	}
	got, err := of(d, "").GPU(0)
	want := machine.MIG{Capable: true, Enabled: true, Devices: []machine.MIGDevice{{
		UUID: "MIG-2", Profile: "3g.40gb", MemoryMiB: 40448, Multiprocessors: 60, GPUSlices: 3, ComputeSlices: 3,
		CopyEngines: 3, DecoderEngines: 3, JPEGEngines: 3,
	}}}
	if diff := cmp.Diff(want, got.MIG); diff != "" || err == nil || err.Error() != "MIG: MIG device 1: ERROR_UNKNOWN" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// The real library, where there is one: every GPU that it counts can be read.
func TestSystem(t *testing.T) {
	l := New(gpu.Options{})
	driver, count, err := l.Open()
	switch {
	case errors.Is(err, gpu.ErrAbsent):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	defer l.Close()
	t.Logf("driver %+v, %d GPUs", driver, count)
	for i := range count {
		g, err := l.GPU(i)
		if err != nil || g.UUID == "" {
			t.Errorf("GPU %d: %+v, %v", i, g, err)
		}
	}
}

// Blackwell's drivers count recoveries by another field; a link without any counter is left out.
func TestLinkErrors(t *testing.T) {
	d := device()
	d.GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return {
		for i := range values {
			v := &values[i]
			v.NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
			set := func(kind nvml.ValueType, n uint64) {
				v.NvmlReturn, v.ValueType = uint32(nvml.SUCCESS), uint32(kind)
				binary.NativeEndian.PutUint64(v.Value[:], n)
			}
			switch {
			case v.ScopeId == 0 && v.FieldId == nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS:
				set(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, 7)
			case v.ScopeId == 1 && v.FieldId == nvml.FI_DEV_NVLINK_ERROR_DL_CRC:
				set(nvml.VALUE_TYPE_UNSIGNED_INT, 1<<40|9)
			case v.ScopeId == 1 && v.FieldId == nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY:
				set(nvml.VALUE_TYPE_DOUBLE, 1)
			case v.ScopeId == 2:
				set(nvml.VALUE_TYPE_UNSIGNED_LONG, 1<<63)
			}
		}
		return nvml.SUCCESS
	}
	want := map[string]machine.LinkErrors{"NVLink 0": {"nvlink-recoveries": 7}, "NVLink 1": {"nvlink-crc-errors": 9}}
	if diff := cmp.Diff(want, linkErrors(d, []int{0, 1, 2, 3})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := linkErrors(d, nil); len(got) != 0 {
		t.Errorf("no links: %v", got)
	}
}
