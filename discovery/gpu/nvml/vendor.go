// Package nvml is NVIDIA's GPUs: what heddle knows of them as values, and their
// management library as a [gpu.Library].
//
// It owns the session with the driver, the translation of NVML's values into
// heddle's (no nvml.Return leaves it), NVIDIA's catalog of error reports and
// the content of the driver's CDI spec. It changes nothing of a GPU but its
// compute mode, when asked. A missing library or driver is a state: the next
// read tries again, since the driver may come after the daemon.
package nvml

import (
	"strconv"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Vendor describes NVIDIA's GPUs.
func Vendor() *gpu.Vendor {
	return &gpu.Vendor{
		Name:   "NVIDIA",
		Domain: "nvidia.com",
		Probe:  "nvml",
		Link:   "NVLink",
		// Class 03 are display controllers, 0680 ("other bridge") are NVSwitches.
		PCI:    gpu.PCI{Vendor: "0x10de", GPUs: []string{"0x03"}, Switches: []string{"0x0680"}},
		Module: "nvidia",
		Node:   "/dev/nvidia",
		Labels: gpu.Labels{CUDA: true, MIG: true, MPS: true, VGPU: true},
		Remedies: gpu.Remedies{
			Driver:    "Install or load NVIDIA's driver, and see that libnvidia-ml.so.1 is of its version: nvidia-smi, dmesg.",
			Lost:      "Drain the node, then reset the GPU or reboot; dmesg has the XID.",
			Unhealthy: "nvidia-smi -q shows the recovery action; drain the node before a reset.",
			Fabric:    "See nvidia-fabricmanager's log, then reset the GPU or reboot.",
			Link:      "See nvidia-smi nvlink -s -i",
		},
		Codes: catalog(),
		Environment: gpu.Environment{
			// "void or empty or unset: nvidia-container-runtime will have the same
			// behavior as runc",
			// https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html.
			Visible: "NVIDIA_VISIBLE_DEVICES", None: "void",
			GDRCopy: "NVIDIA_GDRCOPY", GDS: "NVIDIA_GDS", Enabled: "enabled", IMEX: "NVIDIA_IMEX_CHANNELS",
		},
	}
}

// The actions that NVIDIA's driver asks for, nvmlDeviceGpuRecoveryAction_t.
const (
	ActionGPUReset      gpu.Action = "GPU reset"
	ActionNodeReboot    gpu.Action = "node reboot"
	ActionDrainP2P      gpu.Action = "drain of peer-to-peer traffic"
	ActionDrainAndReset gpu.Action = "drain and GPU reset"
	ActionRecoverIMEX   gpu.Action = "recovery of the IMEX domain"
	ActionBusReset      gpu.Action = "reset of the GPU's PCIe bus"
	ActionSystemReboot  gpu.Action = "system reboot"
)

// action translates NVML's number (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, drivers
// since R565); what a newer driver asks for is still something that it asks for.
func action(n uint32) gpu.Action {
	known := []gpu.Action{
		gpu.ActionNone, ActionGPUReset, ActionNodeReboot, ActionDrainP2P, ActionDrainAndReset, ActionRecoverIMEX,
		ActionBusReset, ActionSystemReboot,
	}
	if uint64(n) < uint64(len(known)) {
		return known[n]
	}
	return gpu.Action("recovery action " + strconv.FormatUint(uint64(n), 10))
}
