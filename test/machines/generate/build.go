package main

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// build is a machine in the making.
type build struct {
	m machine.Machine
}

// start begins a machine whose readers all work.
func start(node, product, kernel string, cpu machine.CPU) *build {
	b := &build{m: machine.Machine{
		Version: machine.Version, Node: node, Product: product, Kernel: kernel, CPU: cpu,
		RDMA: machine.RDMA{NetnsMode: "shared", RDMACM: true},
	}}
	for _, name := range []string{"sysfs", "nvml", "rdma", "rdma-netlink", "cpu"} {
		b.probe(name, machine.ProbeOK, "")
	}
	return b
}

// probe sets how a reader fared.
func (b *build) probe(name string, state machine.ProbeState, reason string) {
	for i := range b.m.Probes {
		if b.m.Probes[i].Name == name {
			b.m.Probes[i] = machine.Probe{Name: name, State: state, Reason: reason}
			return
		}
	}
	b.m.Probes = append(b.m.Probes, machine.Probe{Name: name, State: state, Reason: reason})
}

// noDriver makes the machine one without NVIDIA's driver.
func (b *build) noDriver() {
	b.probe("nvml", machine.ProbeAbsent, "NVML is absent: no libnvidia-ml.so.1")
}

func (b *build) driver(version, cuda string) {
	b.m.Driver = machine.Driver{Version: version, CUDA: cuda}
}

func (b *build) done() *machine.Machine {
	b.m.Sort()
	return &b.m
}

// slot is a place in the PCI tree.
type slot struct {
	address  string
	root     string
	upstream []string
	// numa is the node; -1 is what the kernel shows for unknown.
	numa int
	// speed and width are the link's; "" and 0 where the kernel is silent.
	speed string
	width int
}

// The speeds of PCIe generations, as sysfs writes them.
const (
	gen4 = "16.0 GT/s PCIe"
	gen5 = "32.0 GT/s PCIe"
)

// switched is a slot under a switch of its own root port: root bus, upstream
// port, downstream port and then the function. down is the downstream port's
// device number: functions with the same root and upstream share the switch.
func switched(root, up, down int, address string, numa int, speed string) slot {
	return slot{
		address: address, root: bridge(root), numa: numa, speed: speed, width: 16,
		upstream: []string{
			fmt.Sprintf("0000:%02x:01.0", root),
			fmt.Sprintf("0000:%02x:00.0", up),
			fmt.Sprintf("0000:%02x:%02x.0", up+1, down),
		},
	}
}

// direct is a slot right under a root port.
func direct(root int, address string, numa int, speed string) slot {
	return slot{
		address: address, root: bridge(root), numa: numa, speed: speed, width: 16,
		upstream: []string{fmt.Sprintf("0000:%02x:01.0", root)},
	}
}

func bridge(bus int) string { return fmt.Sprintf("pci0000:%02x", bus) }

func bus(n int) string { return fmt.Sprintf("0000:%02x:00.0", n) }

// function adds a PCI function in a slot.
func (b *build) function(s slot, class, vendor, device, driver string) {
	f := machine.PCIFunction{
		Address: s.address, Class: class, Vendor: vendor, Device: device, Driver: driver,
		Root: s.root, Upstream: s.upstream, LinkSpeed: s.speed, LinkWidth: s.width,
	}
	if s.numa >= 0 {
		f.NUMA = new(s.numa)
	}
	f.CPUs = b.cpus(s.numa)
	b.m.PCI = append(b.m.PCI, f)
}

// cpus is local_cpulist: the node's processors; all of them where the kernel
// knows no node.
func (b *build) cpus(numa int) string {
	last := 0
	for i := range b.m.CPU.NUMA {
		n := &b.m.CPU.NUMA[i]
		if n.ID == numa {
			return n.CPUs
		}
		highest, err := strconv.Atoi(n.CPUs[strings.LastIndexAny(n.CPUs, "-,")+1:])
		if err == nil {
			last = max(last, highest)
		}
	}
	return fmt.Sprintf("0-%d", last)
}

// bits are n bytes that depend on the words alone.
func bits(n int, words ...string) []byte {
	sum := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return sum[:n]
}

// uuid is a stable "GPU-…" identity.
func uuid(words ...string) string {
	u := bits(16, words...)
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// guid is a stable EUI-64 of a ConnectX adapter, as sysfs writes it.
func guid(words ...string) string {
	u := bits(3, words...)
	return fmt.Sprintf("a088:c203:00%02x:%02x%02x", u[0], u[1], u[2])
}

// linkLocal is the lower half of a RoCE port's first GID: the EUI-64 of the
// port's MAC, which is not the node's GUID.
func linkLocal(words ...string) string {
	u := bits(3, words...)
	return fmt.Sprintf("a288:c2ff:fe%02x:%02x%02x", u[0], u[1], u[2])
}

func numbered(prefix string, n int) []string { return []string{prefix + strconv.Itoa(n)} }
