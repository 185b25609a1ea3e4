package sysfs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/discovery/gpu"
)

const pciDevices = "bus/pci/devices/"

// PCI reads the functions of interest: display and network controllers, accelerators,
// switches between GPUs, the DMA functions of Data-Direct NICs, and those named
// in carry (whatever carries an RDMA device; some are of class "other"). A tree
// without a PCI bus has none.
func (f FS) PCI(carry map[string]bool, vendors gpu.Vendors) ([]machine.PCIFunction, []machine.Skipped, error) {
	names, err := f.List(strings.TrimSuffix(pciDevices, "/"))
	if err != nil {
		return nil, nil, err
	}
	var functions []machine.PCIFunction
	var skipped []machine.Skipped
	for _, name := range names {
		note := func(reason string) {
			skipped = append(skipped, machine.Skipped{Name: wellknown.Clip(name), Reason: reason})
		}
		if _, err := machine.ParseAddress(name); err != nil {
			note("in " + f.Path(pciDevices) + " and no PCI address")
			continue
		}
		class, err := f.word(name, "class")
		var fn machine.PCIFunction
		switch {
		case err != nil:
		case carry[name], ofClass(class), f.special(name, class, vendors):
			fn, err = f.function(name, class, note)
		default:
			continue
		}
		if err != nil {
			note(err.Error())
			continue
		}
		functions = append(functions, fn)
	}
	return functions, skipped, nil
}

// ofClass reports whether a class is of interest for every vendor: network (02),
// display (03) and processing accelerators (12, such as MI300X) are the highest
// byte of three, co-processors (0b40) the higher two (include/linux/pci_ids.h).
func ofClass(class string) bool {
	return len(class) == len("0x030200") && slices.ContainsFunc([]string{"0x02", "0x03", "0x12", "0x0b40"},
		func(prefix string) bool { return strings.HasPrefix(class, prefix) })
}

// special finds the functions that only their maker's numbers identify: GPUs that are no
// display controllers, switches between GPUs, the DMA functions of ConnectX-8 (15b3:2100, rdma-core
// kernel-boot/rdma_topo) and eRDMA, which has no class (drivers/infiniband/hw/erdma).
func (f FS) special(address, class string, vendors gpu.Vendors) bool {
	if strings.HasPrefix(class, "0x0604") {
		return false
	}
	vendor, err := f.word(address, "vendor")
	if err != nil {
		return false
	}
	if vendor == VendorMellanox || vendor == vendorAlibaba {
		device, err := f.word(address, "device")
		return err == nil && (device == DeviceDataDirect || device == deviceERDMA)
	}
	fn := machine.PCIFunction{Vendor: vendor, Class: class}
	return vendors.IsSwitch(&fn) || vendors.IsGPU(&fn)
}

// Vendors and devices that the reader knows by number.
const (
	VendorMellanox = "0x15b3"
	// DeviceDataDirect is the DMA function of a Data-Direct NIC.
	DeviceDataDirect = "0x2100"

	vendorAlibaba = "0x1ded"
	vendorNVIDIA  = "0x10de"
	vendorRedHat  = "0x1b36"
	vendorVMware  = "0x15ad"
	deviceERDMA   = "0x107f"
)

// word returns one of the hexadecimal attributes of a PCI function, by which it is known.
func (f FS) word(address, attribute string) (string, error) {
	path := pciDevices + address + "/" + attribute
	text, err := f.Read(path)
	if err != nil {
		return "", err
	}
	word, err := parseHex(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.Path(path), err)
	}
	return word, nil
}

// function reads one function. Without vendor and device it is nothing; of the
// rest, what cannot be read is unknown and noted.
func (f FS) function(address, class string, note func(reason string)) (machine.PCIFunction, error) {
	fn := machine.PCIFunction{Address: strings.ToLower(address), Class: class}
	dir := pciDevices + address
	var err error
	if fn.Vendor, err = f.word(address, "vendor"); err != nil {
		return fn, err
	}
	if fn.Device, err = f.word(address, "device"); err != nil {
		return fn, err
	}
	read := func(attribute string) string {
		text, err := f.Read(dir + "/" + attribute)
		if err != nil && !Unknown(err) {
			note(err.Error())
		}
		return text
	}
	fn.Driver = base(f.Link(dir + "/driver"))
	fn.PhysFn = base(f.Link(dir + "/physfn"))
	if text := read("numa_node"); text != "" {
		if fn.NUMA, err = parseNUMA(text); err != nil {
			note(f.Path(dir+"/numa_node") + ": " + err.Error())
		}
	}
	if fn.CPUs, err = parseCPUList(read("local_cpulist")); err != nil {
		note(f.Path(dir+"/local_cpulist") + ": " + err.Error())
	}
	fn.LinkSpeed = linkSpeed(read("current_link_speed"))
	fn.LinkWidth = parseLinkWidth(read("current_link_width"))
	place := ParsePlace(f.Link(dir))
	if place.Root == "" {
		note(f.Path(dir) + " does not link into devices/pciDDDD:BB: the path is unknown")
	}
	fn.Root = place.Root
	if n := len(place.Functions); n > 0 {
		fn.Upstream = place.Functions[:n-1]
	}
	f.capability(dir, &fn)
	return fn, nil
}

// capability reads what both ends of a function's link offer.
func (f FS) capability(dir string, fn *machine.PCIFunction) {
	n := len(fn.Upstream)
	if fn.LinkWidth == 0 || n == 0 {
		return
	}
	above := fn.Upstream[n-1]
	// QEMU's and VMware's ports have made-up capabilities; a GPU below its maker's own port is not in a slot (Grace).
	// Both ends of a real link have the same width.
	switch vendor := f.Text(pciDevices + above + "/vendor"); {
	case parseLinkWidth(f.Text(pciDevices+above+"/current_link_width")) != fn.LinkWidth,
		vendor == vendorRedHat, vendor == vendorVMware, vendor == vendorNVIDIA && fn.Vendor == vendorNVIDIA:
		return
	}
	speed, portSpeed := linkSpeed(f.Text(dir+"/max_link_speed")), linkSpeed(f.Text(pciDevices+above+"/max_link_speed"))
	if machine.SpeedGTs(portSpeed) < machine.SpeedGTs(speed) {
		speed = portSpeed
	}
	width := parseLinkWidth(f.Text(dir + "/max_link_width"))
	width = min(width, parseLinkWidth(f.Text(pciDevices+above+"/max_link_width")))
	if width > 0 {
		fn.MaxLinkSpeed, fn.MaxLinkWidth = speed, width
	}
}

// linkSpeed drops the kernel's word for "no link".
func linkSpeed(s string) string {
	if strings.HasPrefix(s, "Unknown") {
		return ""
	}
	return wellknown.Clip(s)
}

func base(path string) string {
	return path[strings.LastIndexByte(path, '/')+1:]
}
