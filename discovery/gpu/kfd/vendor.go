// Package kfd is AMD's GPUs: what heddle knows of them as values, and a
// [gpu.Library] that reads them from sysfs. No library of AMD's is needed.
//
// It owns the reading of the kernel's compute topology (KFD), of the amdgpu
// driver's attributes and of its RAS counters, and the device nodes of each GPU.
// It opens no device, changes nothing of a GPU, and keeps no more between two
// reads than which topology node belongs to which GPU.
package kfd

import (
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

const vendorID = "0x1002"

// Vendor describes AMD's GPUs.
func Vendor() *gpu.Vendor {
	return &gpu.Vendor{
		Name:   "AMD",
		Domain: "amd.com",
		Probe:  "kfd",
		Link:   "XGMI",
		// Class 0380 are display controllers without a screen (MI100 to MI250X), 12
		// processing accelerators (MI300 and later). One with a screen (0300) may be
		// the processor's graphics unit, which need have no driver: it is a GPU if the
		// driver shows it.
		PCI:    gpu.PCI{Vendor: vendorID, GPUs: []string{"0x0380", "0x0302", "0x12"}},
		Module: "amdgpu",
		Node:   "/dev/dri/renderD",
		Labels: gpu.Labels{Own: wellknown.AMDLabels()},
		Remedies: gpu.Remedies{
			Driver:    "Load AMD's driver, and see that it has a compute topology: lsmod, dmesg, ls /sys/class/kfd.",
			Lost:      "Drain the node, then reset the GPU or reboot; dmesg has amdgpu's messages.",
			Unhealthy: "rocm-smi --showrasinfo all shows the counters, which a reset clears; drain the node before it.",
			Fabric:    "See dmesg for amdgpu's messages about XGMI, then reboot.",
			Link:      "See rocm-smi --showtopo, and dmesg for",
		},
		Environment: gpu.Environment{
			// "AMD_VISIBLE_DEVICES=none: disables GPU visibility" (AMD Container Toolkit).
			// It takes a GPU's unique_id as 0x and its digits.
			Visible: "AMD_VISIBLE_DEVICES", None: "none", Prefix: "0x",
		},
	}
}
