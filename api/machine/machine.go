// Package machine describes what one node has: processors, PCI functions, GPUs,
// HCAs and NVLink, as plain values.
//
// Discovery reads a Machine, and everything else decides by it. Its
// JSON form is the dump that `heddle inspect -o json` prints, that `--machine
// FILE` replays and that test/machines holds. The package reads no hardware
// and keeps no state.
//
// Two rules hold for every field. What may be absent is explicit: a pointer,
// null in JSON, means "unknown", never zero. And identity is stable: a GPU is
// its UUID, an HCA is its PCI address or, without one, its node GUID; indices
// and device names are for display.
package machine

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Version is the value of Machine.Version that this code reads and writes.
const Version = "heddle.dev/machine/v1"

// Machine is one node.
type Machine struct {
	// Version is always [Version].
	Version string `json:"version"`
	// Node is the name of the Kubernetes Node, or the host name.
	Node string `json:"node"`
	// Product is DMI's product name (/sys/class/dmi/id/product_name); empty
	// where the firmware has none.
	Product string `json:"product"`
	// Kernel is the release of the running kernel (/proc/sys/kernel/osrelease).
	Kernel string `json:"kernel"`

	CPU  CPU           `json:"cpu"`
	PCI  []PCIFunction `json:"pci"`
	GPUs []GPU         `json:"gpus"`
	HCAs []HCA         `json:"hcas"`

	// Driver is the driver of the GPUs, of the first maker in the order of preference if there
	// are several; OtherDrivers has the others. See [Machine.DriverOf].
	Driver       Driver   `json:"driver"`
	OtherDrivers []Driver `json:"otherDrivers,omitempty"`
	RDMA         RDMA     `json:"rdma"`

	// Probes reports how each reader fared. It has one entry per reader, by
	// name, also for those that found nothing.
	Probes []Probe `json:"probes"`
	// Skipped lists what was there and could not be understood.
	Skipped []Skipped `json:"skipped"`
}

// CPU is the processor side of the machine.
type CPU struct {
	// Arch is GOARCH's word for the instruction set: amd64, arm64.
	Arch string `json:"arch"`
	// Vendor is the processor's maker in lower case: amd, intel, nvidia,
	// hygon, huawei, ampere, arm, phytium, microsoft...; "unknown" otherwise.
	Vendor string `json:"vendor"`
	// Family and Model are CPUID's display family and model on x86
	// (/proc/cpuinfo "cpu family", "model"); on Arm the implementer and part
	// of MIDR_EL1 ("CPU implementer", "CPU part").
	Family int `json:"family"`
	Model  int `json:"model"`
	// ModelName is /proc/cpuinfo's "model name"; empty on most Arm machines.
	ModelName string `json:"modelName"`
	// Codename is vendor-family-codename, fit for a label value:
	// amd-epyc-milan, intel-xeon-sapphirerapids, nvidia-grace.
	Codename string `json:"codename"`
	// Sockets is the number of distinct physical packages
	// (cpuN/topology/physical_package_id); 0 is unknown.
	Sockets int `json:"sockets"`
	// NUMA lists the memory nodes that have CPUs or memory, by ID.
	NUMA []NUMANode `json:"numa"`
}

// NUMANode is /sys/devices/system/node/nodeN.
type NUMANode struct {
	ID int `json:"id"`
	// CPUs is the cpulist, as the kernel writes it: "0-55,112-167". Empty
	// for a node without processors, such as a GPU's memory on Grace.
	CPUs string `json:"cpus"`
	// Distances are the ACPI SLIT's, in the order of CPU.NUMA; 10 is local.
	Distances []int `json:"distances"`
}

// Has reports whether a processor, by the kernel's number, is of the node.
func (n *NUMANode) Has(cpu int64) bool {
	for part := range strings.SplitSeq(n.CPUs, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.ParseInt(from, 10, 64)
		last, err2 := strconv.ParseInt(to, 10, 64)
		if err1 == nil && err2 == nil && first <= cpu && cpu <= last {
			return true
		}
	}
	return false
}

// PCIFunction is one function of interest: a display controller, an accelerator, a
// network controller, an NVSwitch or whatever carries an RDMA device. Bridges appear
// only inside Upstream.
type PCIFunction struct {
	// Address is domain:bus:device.function, lower case: 0000:18:00.0.
	Address string `json:"address"`
	// Class, Vendor and Device are sysfs' hexadecimal words: 0x030200,
	// 0x10de, 0x2330.
	Class  string `json:"class"`
	Vendor string `json:"vendor"`
	Device string `json:"device"`
	// Driver is the name of the bound kernel driver (the driver link); empty
	// if none.
	Driver string `json:"driver"`
	// NUMA is numa_node; nil where the kernel has -1.
	NUMA *int `json:"numa"`
	// CPUs is local_cpulist: "0-55,112-167".
	CPUs string `json:"cpus"`
	// Root is the host bridge, the first element of the function's path
	// under /sys/devices: pci0000:16.
	Root string `json:"root"`
	// Upstream are the bridges from the root port down to the function's
	// parent; empty for a function on the root bus.
	Upstream []string `json:"upstream"`
	// PhysFn is the physical function's address if this is a virtual one
	// (the physfn link).
	PhysFn string `json:"physFn,omitempty"`
	// LinkSpeed ("32.0 GT/s PCIe") and LinkWidth (lanes) are
	// current_link_speed and current_link_width; empty and 0 where the kernel does not report it.
	LinkSpeed string `json:"linkSpeed,omitempty"`
	LinkWidth int    `json:"linkWidth,omitempty"`
	// MaxLinkSpeed and MaxLinkWidth are the most that the function and the port above it both offer
	// (max_link_speed, max_link_width): what the slot allows. Empty and 0 where either is unknown, and
	// below a virtual port, which is not the slot.
	MaxLinkSpeed string `json:"maxLinkSpeed,omitempty"`
	MaxLinkWidth int    `json:"maxLinkWidth,omitempty"`
}

// SpeedGTs parses a link speed such as "32.0 GT/s PCIe" into GT/s; 0 if it is unknown.
func SpeedGTs(speed string) float64 {
	number, _, _ := strings.Cut(speed, " ")
	gts, err := strconv.ParseFloat(number, 64)
	if err != nil || !(gts > 0 && gts < 1e6) {
		return 0
	}
	return gts
}

// PassedThrough reports whether the function was given to virtual machines: it is bound to
// vfio-pci or a variant of it, which the kernel calls by the module's name, such as
// nvgrace_gpu_vfio_pci and mlx5_vfio_pci.
func (f *PCIFunction) PassedThrough() bool {
	return strings.HasSuffix(strings.ReplaceAll(f.Driver, "_", "-"), "vfio-pci")
}

// Driver is the GPU driver.
type Driver struct {
	// Version is nvmlSystemGetDriverVersion's, for instance 570.86.15; empty
	// without a driver.
	Version string `json:"version"`
	// Vendor is the maker's domain as [GPU.Vendor] has it.
	Vendor string `json:"vendor,omitempty"`
	// CUDA is the highest CUDA version that the driver supports
	// (nvmlSystemGetCudaDriverVersion_v2): "12.8".
	CUDA string `json:"cuda"`
	// Unidentified are GPUs that the driver counts, and that have not reported who they are since
	// it was loaded: they were lost before.
	Unidentified int `json:"unidentified,omitempty"`
}

// Drivers returns the loaded drivers, the first maker's first.
func (m *Machine) Drivers() []Driver {
	if m.Driver == (Driver{}) {
		return nil
	}
	return append([]Driver{m.Driver}, m.OtherDrivers...)
}

// DriverOf returns a maker's driver, as [GPU.Vendor] has it; zero without one.
func (m *Machine) DriverOf(vendor string) Driver {
	for _, d := range m.Drivers() {
		if d.Vendor == vendor {
			return d
		}
	}
	return Driver{}
}

// AddDriver adds the driver of one more maker, unless it is zero.
func (m *Machine) AddDriver(d Driver) {
	switch {
	case d == Driver{}:
	case m.Driver == Driver{}:
		m.Driver = d
	default:
		m.OtherDrivers = append(m.OtherDrivers, d)
	}
}

// RDMA is the state of the kernel's RDMA stack, as opposed to its devices.
type RDMA struct {
	// NetnsMode is "shared" or "exclusive" (RDMA_NLDEV_ATTR_SYS_NETNS_MODE);
	// empty where netlink does not answer.
	NetnsMode string `json:"netnsMode"`
	// RDMACM reports whether /dev/infiniband/rdma_cm is there (module rdma_ucm).
	RDMACM bool `json:"rdmaCM"`
}

// ProbeState is how a reader fared.
type ProbeState string

// The states of a probe.
const (
	// ProbeOK means that the reader read.
	ProbeOK ProbeState = "ok"
	// ProbeAbsent means that there is nothing of its kind to read: no
	// library, no driver, no class directory. That is a state, not an error.
	ProbeAbsent ProbeState = "absent"
	// ProbeFailed means that something is there and could not be read.
	ProbeFailed ProbeState = "failed"
	// ProbeTimeout means that a call did not return in its time; the values
	// are from the last good read, if there was one.
	ProbeTimeout ProbeState = "timeout"
	// ProbeReleased means that the reader let go of the driver because it was
	// asked to; the values are from before that, if there are any.
	ProbeReleased ProbeState = "released"
)

// Probe is the outcome of one reader.
type Probe struct {
	// Name is sysfs, nvml, rdma, rdma-netlink or cpu.
	Name  string     `json:"name"`
	State ProbeState `json:"state"`
	// Reason is empty for ProbeOK.
	Reason string `json:"reason,omitempty"`
}

// Skipped is a device, or a part of one, that was left out.
type Skipped struct {
	// Name identifies it: a PCI address, mlx5_3, mlx5_3/ports/2.
	Name string `json:"name"`
	// Reason is why, with the file at fault.
	Reason string `json:"reason"`
}

// Sort brings every list into its order: PCI functions, GPUs and HCAs by PCI
// address, numerically, HCAs without one last and by name; ports and NUMA
// nodes by number; probes and skips by name.
func (m *Machine) Sort() {
	slices.SortFunc(m.PCI, func(a, b PCIFunction) int { return ComparePCI(a.Address, b.Address) })
	slices.SortFunc(m.GPUs, func(a, b GPU) int {
		return cmp.Or(ComparePCI(a.PCI, b.PCI), strings.Compare(a.UUID, b.UUID))
	})
	slices.SortFunc(m.HCAs, func(a, b HCA) int {
		return cmp.Or(ComparePCI(a.PCI, b.PCI), CompareNames(a.Name, b.Name))
	})
	for i := range m.HCAs {
		slices.SortFunc(m.HCAs[i].Ports, func(a, b Port) int { return cmp.Compare(a.Number, b.Number) })
	}
	slices.SortFunc(m.CPU.NUMA, func(a, b NUMANode) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(m.Probes, func(a, b Probe) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(m.Skipped, func(a, b Skipped) int {
		return cmp.Or(CompareNames(a.Name, b.Name), strings.Compare(a.Reason, b.Reason))
	})
}

// CompareNames orders device names with their trailing number as a number:
// mlx5_2 before mlx5_10.
func CompareNames(a, b string) int {
	pa, na := SplitNumber(a)
	pb, nb := SplitNumber(b)
	return cmp.Or(strings.Compare(pa, pb), cmp.Compare(na, nb), strings.Compare(a, b))
}

// SplitNumber cuts a name before its trailing number; the number of a name without one is -1.
func SplitNumber(s string) (prefix string, number int) {
	prefix = strings.TrimRight(s, "0123456789")
	number, err := strconv.Atoi(s[len(prefix):])
	if err != nil {
		return s, -1
	}
	return prefix, number
}

// Function returns the PCI function with this address, or nil.
func (m *Machine) Function(address string) *PCIFunction {
	for i := range m.PCI {
		if m.PCI[i].Address == address {
			return &m.PCI[i]
		}
	}
	return nil
}
