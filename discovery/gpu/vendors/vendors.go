// Package vendors lists the vendors of GPUs that heddle supports. A new one is
// one line here, and a package beside discovery/gpu/nvml.
package vendors

import (
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
)

// All are the vendors, in the order of preference.
func All() gpu.Vendors { return gpu.Vendors{nvml.Vendor()} }
