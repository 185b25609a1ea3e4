package machine

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// GPU is one physical GPU.
type GPU struct {
	// Vendor is the domain of the maker's resources, amd.com; empty is nvidia.com,
	// the only one of older dumps.
	Vendor string `json:"vendor,omitempty"`
	// UUID is the driver's "GPU-…" (nvmlDeviceGetUUID), the GPU's identity.
	UUID string `json:"uuid"`
	// Index is NVML's (nvmlDeviceGetHandleByIndex); it changes when a GPU is
	// lost, and a lost GPU keeps the one it had. For display.
	Index int `json:"index"`
	// Minor is N of /dev/nvidiaN (nvmlDeviceGetMinorNumber), of /dev/dri/renderDN
	// for other makers; nil where the driver does not report it.
	Minor *int `json:"minor"`
	// PCI is the address of the GPU's function (nvmlDeviceGetPciInfo), in
	// sysfs' spelling.
	PCI string `json:"pci"`
	// Product is nvmlDeviceGetName's: "NVIDIA H100 80GB HBM3".
	Product string `json:"product"`
	// Architecture is the generation in lower case, by compute capability:
	// hopper, ada-lovelace.
	Architecture string `json:"architecture"`
	// ComputeCapability is "9.0" (nvmlDeviceGetCudaComputeCapability).
	ComputeCapability string `json:"computeCapability"`
	// MemoryMiB is the total memory (nvmlDeviceGetMemoryInfo), 1 MiB = 2^20
	// bytes; 0 where the GPU shares the processor's.
	MemoryMiB int64 `json:"memoryMiB"`
	// ECC reports whether error correction is on (nvmlDeviceGetEccMode, the
	// current mode); nil where unsupported.
	ECC *bool `json:"ecc"`
	// MIG is the multi-instance mode.
	MIG MIG `json:"mig"`
	// NVLinks are the active links (nvmlDeviceGetNvLinkState), summed by peer,
	// sorted by peer; without those to NVSwitches if Fabric has failed.
	NVLinks []NVLink `json:"nvlinks"`
	// Fabric is the GPU's registration with the NVLink fabric; nil where
	// there is none to register with.
	Fabric *Fabric `json:"fabric"`
	// Health is the health in the scan that found the GPU.
	Health Health `json:"health"`
	// VGPU is the host's vGPU software, if this GPU is a virtual one.
	VGPU *VGPU `json:"vgpu,omitempty"`
	// Attributes are the values of the maker's own node labels, by their names after
	// the domain and the word: cu-count for amd.com/gpu.cu-count.
	Attributes map[string]string `json:"attributes,omitempty"`
}

// MIG is a GPU's multi-instance mode (nvmlDeviceGetMigMode), or how a GPU of
// another maker is cut.
type MIG struct {
	// Mode is the name of the mode of a maker that has several: SPX/NPS1, CPX/NPS4.
	// A GPU in one of these modes is allocated by instance alone.
	Mode string `json:"mode,omitempty"`
	// Capable reports whether the GPU has the mode, Enabled whether it is on now.
	Capable bool `json:"capable"`
	Enabled bool `json:"enabled"`
	// Devices are the instances, in NVML's order
	// (nvmlDeviceGetMigDeviceHandleByIndex); none unless enabled.
	Devices []MIGDevice `json:"devices"`
}

// Partition returns the ID of a partition without a reported ID: AMD's, which
// have the GPU's unique_id (CPX, DPX, QPX).
func Partition(uuid string, n int) string { return fmt.Sprintf("%s-p%d", uuid, n) }

// PartitionOf returns the GPU of an ID that [Partition] made; empty for other IDs.
func PartitionOf(id string) string {
	at := strings.LastIndex(id, "-p")
	if at < 0 {
		return ""
	}
	if _, err := strconv.ParseUint(id[at+len("-p"):], 10, 8); err != nil {
		return ""
	}
	return id[:at]
}

// MIGDevice is one instance: compute and memory with a UUID. Its
// sizes are nvmlDeviceGetAttributes_v2's.
type MIGDevice struct {
	// UUID is NVML's "MIG-…".
	UUID string `json:"uuid"`
	// Profile is the field's name for the shape: 1g.10gb, 3g.40gb.
	Profile string `json:"profile"`
	// MemoryMiB is memorySizeMB, which counts in 2^20 bytes.
	MemoryMiB int64 `json:"memoryMiB"`
	// Multiprocessors, and the GPU and compute slices it was cut from.
	Multiprocessors int `json:"multiprocessors"`
	GPUSlices       int `json:"gpuSlices"`
	ComputeSlices   int `json:"computeSlices"`
	// The engines it has; 0 where NVML does not report it.
	CopyEngines    int `json:"copyEngines"`
	DecoderEngines int `json:"decoderEngines"`
	EncoderEngines int `json:"encoderEngines"`
	JPEGEngines    int `json:"jpegEngines"`
	OFAEngines     int `json:"ofaEngines"`
	// Minor is the minor number of the instance's own device node, as in GPU.Minor; nil
	// where it has none.
	Minor *int `json:"minor,omitempty"`
}

// PeerNVSwitch is the NVLink.Peer of links that end in an NVSwitch: a GPU
// reaches through it every other GPU that has such links.
const PeerNVSwitch = "nvswitch"

// NVLink is all active links of a GPU to one peer.
type NVLink struct {
	// Kind is the maker's name of the links, XGMI; empty means NVLink.
	Kind string `json:"kind,omitempty"`
	// Peer is the PCI address of another GPU, or [PeerNVSwitch].
	Peer string `json:"peer"`
	// Links is how many.
	Links int `json:"links"`
	// MBps is the bandwidth of all links together in one direction, in 10^6
	// bytes a second (NVML's maximum per link times links); nil if unknown.
	MBps *int64 `json:"mbps"`
}

// LinkErrors has the error counters of one link, or of all links of a GPU. Its keys are the values of What in a
// NodeTopology's DegradedLink. A Machine has no counters, since they change all the time.
type LinkErrors map[string]int64

// SwitchErrors are the errors (SXids) of a link that the driver of an NVSwitch has reported since it took the switch.
// They are not in a machine either.
type SwitchErrors struct{ Fatal, NonFatal SXids }

// SXids counts errors. Text is the number and text of the last one, Since the time of the first.
type SXids struct {
	Count int64
	Text  string
	Since time.Time
}

// Fabric states, from nvmlGpuFabricInfo.
const (
	FabricCompleted  = "completed"
	FabricInProgress = "in-progress"
	FabricNotStarted = "not-started"
	// FabricFailed means that the registration ended with an error: the GPU works
	// alone, and reaches no other through NVSwitches.
	FabricFailed = "failed"
)

// Fabric is nvmlDeviceGetGpuFabricInfoV: which NVLink domain a GPU belongs to.
type Fabric struct {
	// ClusterUUID is all zeroes on a machine that is a whole domain.
	ClusterUUID string `json:"clusterUUID"`
	// CliqueID distinguishes the GPUs of a cluster that reach each other.
	CliqueID uint32 `json:"cliqueID"`
	// State is FabricCompleted once the GPU can use its links. While it is
	// FabricInProgress, CUDA fails on the GPU (error 802).
	State string `json:"state"`
	// Reason is why the registration failed, and what the driver's health mask
	// (nvmlDeviceGetGpuFabricInfoV) reports; empty if nothing.
	Reason string `json:"reason,omitempty"`
}

// HealthState is a GPU's condition as far as a scan can see it.
type HealthState string

// The states of a GPU.
const (
	Healthy   HealthState = "healthy"
	Unhealthy HealthState = "unhealthy"
	// Lost means that the GPU is on the bus list and no longer answers.
	Lost HealthState = "lost"
)

// UncorrectableErrors is the cause of a GPU with error counters that report errors that
// could not be corrected.
const UncorrectableErrors = "UncorrectableErrors"

// Health is a GPU's condition and, unless healthy, why.
type Health struct {
	State  HealthState `json:"state"`
	Reason string      `json:"reason,omitempty"`
	// Cause is [UncorrectableErrors], or empty for any other reason.
	Cause string `json:"cause,omitempty"`
}

// String returns the condition and its reason in one, empty for a healthy GPU.
func (h Health) String() string {
	if h.State == Healthy || h.State == "" {
		return ""
	}
	return strings.TrimSuffix(string(h.State)+": "+h.Reason, ": ")
}

// VGPU is the host's virtualization software as the virtual machine sees it: the vendor
// capability in the function's PCI configuration space.
type VGPU struct {
	// HostDriverVersion ("470.63") and HostDriverBranch ("r470_00") are the versions
	// of the host's driver.
	HostDriverVersion string `json:"hostDriverVersion"`
	HostDriverBranch  string `json:"hostDriverBranch"`
}

// LinkKind returns the name of the GPU's links; NVLink without any.
func (g *GPU) LinkKind() string {
	if len(g.NVLinks) > 0 && g.NVLinks[0].Kind != "" {
		return g.NVLinks[0].Kind
	}
	return "NVLink"
}

// GPUAt returns the GPU with this PCI address, or nil.
func (m *Machine) GPUAt(address string) *GPU {
	for i := range m.GPUs {
		if m.GPUs[i].PCI == address {
			return &m.GPUs[i]
		}
	}
	return nil
}

// ParentGPU returns the UUID of the GPU that a MIG device is a part of, "" if no GPU
// of the machine has that device. It may be called on nil.
func (m *Machine) ParentGPU(mig string) string {
	if m == nil {
		return ""
	}
	for i := range m.GPUs {
		for j := range m.GPUs[i].MIG.Devices {
			if m.GPUs[i].MIG.Devices[j].UUID == mig {
				return m.GPUs[i].UUID
			}
		}
	}
	return ""
}
