package host

import (
	"bytes"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// uevent is a kernel object event, as far as it matters here.
type uevent struct {
	action, path, subsystem string
}

// parseUevent reads a message of the kernel (lib/kobject_uevent.c): a header
// "add@/devices/...", then KEY=value words, each ended by a zero byte.
func parseUevent(b []byte) (uevent, bool) {
	var e uevent
	header, rest, ok := bytes.Cut(b, []byte{0})
	if !ok || !bytes.Contains(header, []byte("@")) {
		return e, false // libudev's own messages begin with "libudev".
	}
	for word := range bytes.SplitSeq(rest, []byte{0}) {
		key, value, _ := strings.Cut(string(word), "=")
		switch key {
		case "ACTION":
			e.action = value
		case "DEVPATH":
			e.path = value
		case "SUBSYSTEM":
			e.subsystem = value
		}
	}
	return e, e.action != "" && e.subsystem != ""
}

// concerns reports whether an event can change a Machine. The network devices of
// pods are virtual ones and come by the hundred; bonds are virtual too.
func (e uevent) concerns(vendors gpu.Vendors) bool {
	switch e.subsystem {
	case "pci", "infiniband", "infiniband_verbs", "infiniband_mad", "auxiliary", "node":
		return true
	case "module":
		return strings.Contains(e.path, "/mlx") || strings.Contains(e.path, "/ib_") || strings.Contains(e.path, "/rdma") ||
			slices.ContainsFunc(vendors, func(v *gpu.Vendor) bool { return strings.Contains(e.path, "/"+v.Module) })
	case "net":
		return !strings.HasPrefix(e.path, "/devices/virtual/") || strings.Contains(e.path, "/bond")
	}
	return slices.ContainsFunc(vendors, func(v *gpu.Vendor) bool { return e.subsystem == v.Module })
}
