package host

import (
	"bytes"
	"encoding/binary"
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

// linkNames reads the names of the network devices in a message of rtnetlink's
// link group: struct nlmsghdr, struct ifinfomsg, then attributes;
// IFLA_IFNAME is 3 (rtnetlink(7)). What is cut off ends it.
func linkNames(b []byte) []string {
	const header, info, ifname = 16, 16, 3
	var names []string
	for len(b) >= header {
		size := int(binary.NativeEndian.Uint32(b))
		if size < header || size > len(b) {
			break
		}
		attributes := b[min(header+info, size):size]
		for len(attributes) >= 4 {
			length := int(binary.NativeEndian.Uint16(attributes))
			if length < 4 || length > len(attributes) {
				break
			}
			if binary.NativeEndian.Uint16(attributes[2:]) == ifname {
				names = append(names, string(bytes.TrimRight(attributes[4:length], "\x00")))
			}
			attributes = attributes[min(align(length), len(attributes)):]
		}
		b = b[min(align(size), len(b)):]
	}
	return names
}

// align rounds up to netlink's four bytes.
func align(n int) int { return (n + 3) &^ 3 }

// matters reports whether a network device's state is part of the machine.
func (h *Host) matters(name string) bool {
	m := h.Machine()
	if m == nil {
		return true
	}
	for i := range m.HCAs {
		for _, p := range m.HCAs[i].Ports {
			for _, nic := range p.Netdevs {
				if nic.Name == name {
					return true
				}
			}
		}
	}
	return false
}
