// Package mxcd is MetaX's GPUs: what heddle knows of them as values, and a
// [gpu.Library] that reads them from sysfs and, where it is installed, from mx-smi.
//
// It owns the reading of MetaX's PCI functions, the parsers of what mx-smi prints, and the device
// nodes of each GPU.
// All formats are from public sources; docs/concepts/metax.md names them, and what
// no source shows. A GPU is found without mx-smi; a tool that is absent, hangs or
// prints something else takes no GPU away. The package opens no device and changes
// nothing of a GPU.
package mxcd

import (
	"cmp"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

// Link is how mx-smi writes a connection by MetaXLink.
const Link = "MX"

// Vendor describes MetaX's GPUs.
func Vendor() *gpu.Vendor {
	return &gpu.Vendor{
		Name:   "MetaX",
		Domain: wellknown.MetaX,
		Probe:  "mxcd",
		Link:   "MetaXLink",
		// lspci shows a C500 as "Display controller: Device 9999:4001".
		PCI:    gpu.PCI{Vendor: "0x9999", GPUs: []string{"0x03", "0x12"}},
		Module: "metax",
		Node:   "/dev/dri/renderD",
		Labels: gpu.Labels{Own: wellknown.MetaXLabels()},
		Remedies: gpu.Remedies{
			Driver:    "Load MetaX's driver: lsmod shows metax, and there are /dev/mxcd and /sys/class/mxcd.",
			Lost:      "Drain the node, then reset the GPU or reboot; dmesg has the driver's messages.",
			Unhealthy: "mx-smi and dmesg show more; drain the node before a reset.",
			Fabric:    "See dmesg for the driver's messages, then reboot.",
			Link:      "See mx-smi topo -m, and dmesg for",
		},
		// No public source names a variable of MetaX's container runtime: devices come
		// by CDI alone.
	}
}

// model is a model of GPU.
type model struct {
	name      string
	memoryMiB int64
}

// modelOf returns the model with a PCI device number, for nodes without mx-smi; the zero
// model if it is not known. Names are as mx-smi -L and MetaX's node labels write them.
func modelOf(device string) model {
	return map[string]model{
		"0x4000": {"MXC550", 65536}, "0x4001": {"MXC500", 65536},
		"0x4081": {"MXC280", 65536}, "0x4083": {"MXN260", 65536},
	}[device]
}

// product returns a GPU's name by the tool, else by its PCI device number.
func product(listed, device string) string {
	return cmp.Or(listed, modelOf(device).name, "MetaX GPU "+device)
}
