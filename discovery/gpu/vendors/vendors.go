// Package vendors lists the vendors of GPUs that heddle supports. A new one is
// a line in All and one in Open, and a package beside discovery/gpu/nvml.
package vendors

import (
	"cmp"
	"log/slog"

	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// All are the vendors, in the order of preference.
func All() gpu.Vendors { return gpu.Vendors{nvml.Vendor()} }

// Options locate the drivers of a machine.
type Options struct {
	// DriverRoot is where this process sees the driver's installation; empty
	// leaves it to the dynamic loader. HostDriverRoot is where the container
	// runtime sees it; empty is the same place.
	DriverRoot, HostDriverRoot string
	// SysfsRoot is where the host's sysfs is, usually /sys.
	SysfsRoot string
	// Hook is the vendor's CDI hook on the host; empty leaves hooks out.
	Hook string
	// Features are what containers with GPUs get besides.
	Features gpu.Features
	// Log gets what the vendors' libraries log, at debug level; nil discards.
	Log *slog.Logger
}

// Open returns the machine's GPUs of all vendors. Nothing is read yet.
func Open(o Options) gpu.Sources {
	library := nvml.New(nvml.Options{DriverRoot: o.DriverRoot, Sysfs: sysfs.New(o.SysfsRoot)})
	return gpu.Sources{{
		Vendor: nvml.Vendor(), Library: library, Telemetry: library,
		Edits: nvml.CDI{
			DriverRoot: o.DriverRoot, HostDriverRoot: cmp.Or(o.HostDriverRoot, o.DriverRoot),
			Hook: o.Hook, Features: o.Features, Log: o.Log,
		},
	}}
}
