package sysfs

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Interface is one network device (/sys/class/net/NAME).
type Interface struct {
	machine.Netdev
	// Port is the 1-based port of its adapter: dev_port, which counts from
	// 0, plus one.
	Port int
	// Representor marks a switch port of a virtual function: the kernel
	// lists it under the physical function without being its link.
	Representor bool
}

// Interfaces lists the network devices of a PCI function. virtio puts its own
// device between the two.
func (f FS) Interfaces(address string) ([]Interface, error) {
	names, err := f.List(pciDevices + address + "/net")
	if err != nil {
		return nil, err
	}
	if names == nil {
		names = f.glob(pciDevices + address + "/virtio*/net/*")
	}
	list := make([]Interface, 0, len(names))
	for _, name := range names {
		list = append(list, f.Interface(name))
	}
	return list, nil
}

// glob returns the last parts of the paths that match, sorted; none if any part of
// the way cannot be read.
func (f FS) glob(pattern string) []string {
	paths, err := filepath.Glob(f.Path(pattern))
	if err != nil {
		return nil
	}
	for i, path := range paths {
		paths[i] = filepath.Base(path)
	}
	return paths
}

// Interface reads one network device; what it does not report stays empty.
func (f FS) Interface(name string) Interface {
	dir := "class/net/" + name
	nic := Interface{Netdev: machine.Netdev{Name: name}, Port: 1}
	nic.Type = encapsulation(f.Text(dir + "/type"))
	nic.OperState = f.Text(dir + "/operstate")
	if n, err := strconv.Atoi(f.Text(dir + "/dev_port")); err == nil && n >= 0 && n < 256 {
		nic.Port = n + 1
	}
	// "pf0vf3", "pf0sf2" are representors, "p0" the uplink
	// (Documentation/networking/representors.rst).
	port := f.Text(dir + "/phys_port_name")
	nic.Representor = strings.HasPrefix(port, "pf") || strings.HasPrefix(port, "c")
	return nic
}

// encapsulation spells ARPHRD numbers of include/uapi/linux/if_arp.h as
// iproute2 and vishvananda/netlink do; others stay numbers.
func encapsulation(number string) string {
	switch number {
	case "1":
		return "ether"
	case "32":
		return "infiniband"
	case "772":
		return "loopback"
	}
	return wellknown.Clip(number)
}

// Master returns the bond, bridge or team that a network device is part of.
func (f FS) Master(name string) string {
	return base(f.Link("class/net/" + name + "/master"))
}

// Slaves lists the network devices under a bond, in the bond's order
// (bonding/slaves), or under any other upper device (lower_* links).
func (f FS) Slaves(name string) []string {
	dir := "class/net/" + name
	if text, err := f.Read(dir + "/bonding/slaves"); err == nil {
		return strings.Fields(text)
	}
	slaves := f.glob(dir + "/lower_*")
	for i, entry := range slaves {
		slaves[i] = strings.TrimPrefix(entry, "lower_")
	}
	return slaves
}
