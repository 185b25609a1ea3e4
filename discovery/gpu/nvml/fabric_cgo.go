//go:build cgo && linux

package nvml

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/heddle-dev/heddle/api/machine"
)

// fabric reads the registration with the NVLink fabric. Until it is done, CUDA
// fails to start with cudaErrorSystemNotReady (802); after one that failed, the
// GPU works and has no peers over NVLink
// (https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/). So the
// first GPU is unhealthy, and the second one without NVSwitches.
func (l *Library) fabric(device nvml.Device, g *machine.GPU) error {
	info, ret := l.registration(device)
	if ret != nvml.SUCCESS || info.State == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
		return fault("fabric registration", ret)
	}
	f := &machine.Fabric{
		ClusterUUID: uuid(info.ClusterUuid), CliqueID: info.CliqueId, State: machine.FabricNotStarted,
		Reason: fabricFaults(info.HealthMask),
	}
	status := nvml.Return(info.Status) //nolint:gosec // NVML's own cast.
	switch {
	case info.State == nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		f.State = machine.FabricInProgress
		g.Health = machine.Health{
			State:  machine.Unhealthy,
			Reason: "its registration with the NVLink fabric is in progress: CUDA fails with error 802 until it is done",
		}
	case info.State == nvml.GPU_FABRIC_STATE_COMPLETED && status != nvml.SUCCESS:
		f.State = machine.FabricFailed
		f.Reason = strings.TrimSuffix(status.Error()+"; "+f.Reason, "; ")
	case info.State == nvml.GPU_FABRIC_STATE_COMPLETED:
		f.State = machine.FabricCompleted
	}
	g.Fabric = f
	return nil
}

// registration asks with the newest structure that the driver knows.
func (l *Library) registration(device nvml.Device) (nvml.GpuFabricInfo_v3, nvml.Return) {
	if l.has("nvmlDeviceGetGpuFabricInfoV") {
		newest, ret := device.GetGpuFabricInfoV().V3()
		if ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
			return newest, ret
		}
		older, ret := device.GetGpuFabricInfoV().V2()
		if ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
			return nvml.GpuFabricInfo_v3{
				ClusterUuid: older.ClusterUuid, Status: older.Status, CliqueId: older.CliqueId, State: older.State,
				HealthMask: older.HealthMask,
			}, ret
		}
	}
	if !l.has("nvmlDeviceGetGpuFabricInfo") { // Since driver 525.
		return nvml.GpuFabricInfo_v3{}, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	first, ret := device.GetGpuFabricInfo()
	return nvml.GpuFabricInfo_v3{
		ClusterUuid: first.ClusterUuid, Status: first.Status, CliqueId: first.CliqueId, State: first.State,
	}, ret
}

// fabricFaults returns the faults in a health mask (NVML_GPU_FABRIC_HEALTH_MASK_*).
// Fields that the driver does not support are zero.
func fabricFaults(mask uint32) string {
	var all []string
	is := func(shift, width, value uint32, text string) {
		if mask>>shift&width == value {
			all = append(all, text)
		}
	}
	is(nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW,
		nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE, "its bandwidth is degraded")
	is(nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_RECOVERY,
		nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_RECOVERY_TRUE, "its routes are being recovered")
	is(nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY,
		nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE, "its routes are unhealthy")
	is(nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY,
		nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ACCESS_TIMEOUT_RECOVERY,
		nvml.GPU_FABRIC_HEALTH_MASK_ACCESS_TIMEOUT_RECOVERY_TRUE, "an access timeout is being recovered")
	for value, what := range []string{
		2: "system GUID", 3: "chassis serial number", 4: "no partition", 5: "insufficient NVLinks",
		6: "incompatible GPU firmware", 7: "invalid location", 8: "invalid state of the GPU",
	} {
		if what != "" {
			is(nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION,
				nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION,
				uint32(value), "its configuration is incorrect ("+what+")")
		}
	}
	return strings.Join(all, ", ")
}

// links reads the active NVLinks, summed by peer. Behind the last link of the GPU NVML answers
// INVALID_ARGUMENT. NOT_SUPPORTED is of one link, as in NVIDIA's go-gpuallocator (internal/links).
func (l *Library) links(device nvml.Device, g *machine.GPU) error {
	if !l.has("nvmlDeviceGetNvLinkRemoteDeviceType") { // Since driver 460.
		return nil
	}
	count := map[string]int{}
	var active []int
	var errs []error
	for i := range nvml.NVLINK_MAX_LINKS {
		state, ret := device.GetNvLinkState(i)
		if ret == nvml.ERROR_INVALID_ARGUMENT || ret == nvml.ERROR_FUNCTION_NOT_FOUND {
			break
		}
		if ret == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if ret != nvml.SUCCESS {
			errs = append(errs, failure(fmt.Sprintf("NVLink %d", i), ret))
			continue
		}
		if state != nvml.FEATURE_ENABLED {
			continue
		}
		active = append(active, i)
		peer, err := l.peer(device, nvlink{g.UUID, i})
		if peer != "" {
			count[peer]++
		}
		errs = append(errs, err)
	}
	if l.options.LinkCounters.Due(g.UUID) {
		l.options.LinkCounters.Put(g.UUID, linkErrors(device, active))
	}
	if len(count) == 0 {
		return errors.Join(errs...)
	}
	speed, err := linkSpeed(device)
	g.NVLinks = sumLinks(count, speed)
	return errors.Join(append(errs, err)...)
}

func noLink(ret nvml.Return) bool { return absent(ret) || ret == nvml.ERROR_INVALID_ARGUMENT }

// nvlink names a link of a GPU.
type nvlink struct {
	gpu    string
	number int
}

// peer is linkPeer, asked until it is known: a session's GPUs stay where they are.
func (l *Library) peer(device nvml.Device, link nvlink) (string, error) {
	if known, ok := l.peers.Load(link); ok {
		return known.(string), nil //nolint:forcetypeassert // Stored below.
	}
	peer, err := linkPeer(device, link.number)
	if peer != "" {
		l.peers.Store(link, peer)
	}
	return peer, err
}

// linkPeer returns the peer of a link; "" if NVML does not report it.
func linkPeer(device nvml.Device, i int) (string, error) {
	kind, ret := device.GetNvLinkRemoteDeviceType(i)
	if ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
		return machine.PeerNVSwitch, nil
	}
	if ret != nvml.SUCCESS && !noLink(ret) {
		return "", failure(fmt.Sprintf("peer of NVLink %d", i), ret)
	}
	pci, ret := device.GetNvLinkRemotePciInfo(i)
	switch {
	case noLink(ret):
		return "", nil
	case ret != nvml.SUCCESS:
		return "", failure(fmt.Sprintf("peer of NVLink %d", i), ret)
	}
	address, err := parseBusID(cString(pci.BusId[:]))
	if err != nil {
		return "", nil //nolint:nilerr // Nothing is known of the peer.
	}
	return address, nil
}

// linkSpeed returns the speed of the active links, in 10^6 bytes a second and one
// direction; 0 if unknown.
func linkSpeed(device nvml.Device) (int64, error) {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON}, {FieldId: nvml.FI_DEV_NVLINK_GET_SPEED}}
	if ret := device.GetFieldValues(values); ret != nvml.SUCCESS {
		return 0, fault("speed of NVLinks", ret)
	}
	var err error
	for _, v := range values {
		switch ret := nvml.Return(v.NvmlReturn); { //nolint:gosec // NVML's own cast.
		case ret == nvml.SUCCESS:
			if speed := binary.NativeEndian.Uint32(v.Value[:]); speed > 0 && speed < 1<<24 {
				return int64(speed), nil
			}
		case !noLink(ret):
			err = failure("speed of NVLinks", ret)
		}
	}
	return 0, err
}

// linkErrors reads the error counters of links by one call. Blackwell and later count recoveries by another field and
// have no replays. A link without any counter is left out.
func linkErrors(device nvml.Device, active []int) map[string]machine.LinkErrors {
	fields := map[uint32]string{
		nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY: "nvlink-replays", nvml.FI_DEV_NVLINK_ERROR_DL_CRC: "nvlink-crc-errors",
		nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY:          "nvlink-recoveries",
		nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS: "nvlink-recoveries",
	}
	var values []nvml.FieldValue
	for _, i := range active {
		for field := range fields {
			values = append(values, nvml.FieldValue{FieldId: field, ScopeId: uint32(i)}) //nolint:gosec // A few.
		}
	}
	all := map[string]machine.LinkErrors{}
	if len(values) == 0 || device.GetFieldValues(values) != nvml.SUCCESS {
		return all
	}
	for _, v := range values {
		n, ok := counted(&v)
		if !ok {
			continue
		}
		link, what := fmt.Sprintf("NVLink %d", v.ScopeId), fields[v.FieldId]
		if all[link] == nil {
			all[link] = machine.LinkErrors{}
		}
		all[link][what] = max(all[link][what], n)
	}
	return all
}

// counted reads a counter, of 32 or 64 bits.
func counted(v *nvml.FieldValue) (int64, bool) {
	n, kind := binary.NativeEndian.Uint64(v.Value[:]), nvml.ValueType(v.ValueType) //nolint:gosec // NVML's own cast.
	if kind == nvml.VALUE_TYPE_UNSIGNED_INT {
		n = uint64(binary.NativeEndian.Uint32(v.Value[:]))
	}
	is := v.NvmlReturn == uint32(nvml.SUCCESS) && kind != nvml.VALUE_TYPE_DOUBLE && n <= math.MaxInt64
	return int64(n), is //nolint:gosec // Bounded.
}
