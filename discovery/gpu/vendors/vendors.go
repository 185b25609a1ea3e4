// Package vendors lists the vendors of GPUs that heddle supports. A new one is
// a line in Open, and a package beside discovery/gpu/nvml.
package vendors

import (
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/kfd"
	"github.com/heddle-dev/heddle/discovery/gpu/mxcd"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
)

// All are the vendors, in the order of preference.
func All() gpu.Vendors { return Open(gpu.Options{}).Vendors() }

// Open returns the machine's GPUs of all vendors. Nothing is read yet.
func Open(o gpu.Options) gpu.Sources {
	return gpu.Sources{
		{Vendor: nvml.Vendor(), Library: nvml.New(o)},
		{Vendor: kfd.Vendor(), Library: kfd.New(o)},
		{Vendor: mxcd.Vendor(), Library: mxcd.New(o)},
	}
}
