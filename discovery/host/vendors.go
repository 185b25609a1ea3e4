package host

import (
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/kfd"
	"github.com/heddle-dev/heddle/discovery/gpu/mxcd"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
)

// Vendors are the supported vendors of GPUs, in the order of preference. A new one is a line in [OpenGPUs], and a
// package beside discovery/gpu/nvml.
func Vendors() gpu.Vendors { return OpenGPUs(gpu.Options{}).Vendors() }

// OpenGPUs returns the machine's GPUs of all vendors. Nothing is read yet.
func OpenGPUs(o gpu.Options) gpu.Sources {
	return gpu.Sources{
		{Vendor: nvml.Vendor(), Library: nvml.New(o)},
		{Vendor: kfd.Vendor(), Library: kfd.New(o)},
		{Vendor: mxcd.Vendor(), Library: mxcd.New(o)},
	}
}
