package sysfstest

import (
	"path"
	"strconv"
	"strings"
)

// Function is a PCI function to write.
type Function struct {
	// Path is its place under sys/devices: pci0000:10/0000:10:01.0.
	Path string
	// Class, Vendor, Device are hexadecimal words: 0x030200.
	Class, Vendor, Device string
	// NUMA is numa_node; -1 for unknown.
	NUMA int
	// CPUs is local_cpulist.
	CPUs string
	// Driver, unless empty, is bound.
	Driver string
	// PhysFn, unless empty, is the path of the physical function.
	PhysFn string
	// Speed and Width are the link's, as fast and wide as it can be; empty for none.
	Speed, Width string
}

// PCI writes a function and its entry on the bus; returns its directory.
func (t *Tree) PCI(f Function) string {
	t.t.Helper()
	dir := "sys/devices/" + f.Path
	t.Attributes(dir, map[string]string{
		"class": f.Class, "vendor": f.Vendor, "device": f.Device,
		"numa_node": strconv.Itoa(f.NUMA), "local_cpulist": f.CPUs,
	})
	if f.Speed != "" {
		t.Attributes(dir, map[string]string{"current_link_speed": f.Speed, "current_link_width": f.Width})
		t.Attributes(dir, map[string]string{"max_link_speed": f.Speed, "max_link_width": f.Width})
	}
	if f.Driver != "" {
		t.Dir("sys/bus/pci/drivers/" + f.Driver)
		t.Link(dir+"/driver", "sys/bus/pci/drivers/"+f.Driver)
	}
	if f.PhysFn != "" {
		t.Link(dir+"/physfn", "sys/devices/"+f.PhysFn)
	}
	t.Link("sys/bus/pci/devices/"+path.Base(f.Path), dir)
	return dir
}

// RDMA is an RDMA device to write.
type RDMA struct {
	Name string
	// Attributes of the device: node_guid, fw_ver...
	Attributes map[string]string
	// Ports are the attributes of ports 1, 2...
	Ports []map[string]string
	// UVerbs, UMAD and ISSM are numbers of device nodes; -1 for none. UMAD
	// and ISSM are those of port 1; further ports count up.
	UVerbs, UMAD, ISSM int
}

// RDMA writes a device under parent (a directory that PCI returned, or
// "sys/devices/virtual"), its class entry and its nodes; returns its directory.
func (t *Tree) RDMA(parent string, d RDMA) string {
	t.t.Helper()
	dir := parent + "/infiniband/" + d.Name
	t.Attributes(dir, d.Attributes)
	if parent != "sys/devices/virtual" {
		t.Link(dir+"/device", parent)
	}
	t.Link("sys/class/infiniband/"+d.Name, dir)
	if d.UVerbs >= 0 {
		t.node(parent, "infiniband_verbs", "uverbs"+strconv.Itoa(d.UVerbs), d.Name, 0)
	}
	for i, attributes := range d.Ports {
		t.Dir(dir + "/ports/" + strconv.Itoa(i+1))
		t.Attributes(dir+"/ports/"+strconv.Itoa(i+1), attributes)
		if d.UMAD >= 0 {
			t.node(parent, "infiniband_mad", "umad"+strconv.Itoa(d.UMAD+i), d.Name, i+1)
		}
		if d.ISSM >= 0 {
			t.node(parent, "infiniband_mad", "issm"+strconv.Itoa(d.ISSM+i), d.Name, i+1)
		}
	}
	return dir
}

func (t *Tree) node(parent, class, name, owner string, port int) {
	t.t.Helper()
	dir := parent + "/" + class + "/" + name
	t.Write(dir+"/ibdev", owner)
	if port > 0 {
		t.Write(dir+"/port", strconv.Itoa(port))
	}
	t.Link("sys/class/"+class+"/"+name, dir)
	t.Write("sys/class/"+class+"/abi_version", "6")
	t.Raw("dev/infiniband/"+name, "")
}

// Net writes a network device under parent and its class entry; returns its
// directory. kind is the ARPHRD number: "1" for Ethernet, "32" for IPoIB.
func (t *Tree) Net(parent, name, kind, operState string, devPort int) string {
	t.t.Helper()
	dir := parent + "/net/" + name
	t.Attributes(dir, map[string]string{"type": kind, "operstate": operState, "dev_port": strconv.Itoa(devPort)})
	if parent != "sys/devices/virtual" {
		t.Link(dir+"/device", parent)
	}
	t.Link("sys/class/net/"+name, dir)
	return dir
}

// Bond writes a bond over network devices that are there.
func (t *Tree) Bond(name, operState string, slaves ...string) {
	t.t.Helper()
	dir := t.Net("sys/devices/virtual", name, "1", operState, 0)
	for _, slave := range slaves {
		t.Link("sys/class/net/"+slave+"/master", "sys/class/net/"+name)
	}
	t.Write(dir+"/bonding/slaves", strings.Join(slaves, " "))
}
