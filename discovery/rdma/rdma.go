// Package rdma reads the kernel's RDMA devices: ports, GUIDs, device nodes and
// the network devices on them.
//
// The reader of record is our own sysfs reader (sysfs.go). rdmamap and RDMA
// netlink look at the same kernel from two other sides; each is wrapped in one
// file, tells what it sees differently, and never adds or removes a device.
// The package changes nothing: no link is set up, no device opened.
package rdma

import (
	"path/filepath"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// Reader reads the RDMA devices under a sysfs tree and a device root.
type Reader struct {
	tree sysfs.FS
	dev  string
}

// New returns a reader of tree; dev is the root of device nodes, "/dev".
func New(tree sysfs.FS, dev string) Reader {
	return Reader{tree: tree, dev: filepath.Clean(dev)}
}

// Devices is what one read found.
type Devices struct {
	// HCAs lack Vendor, Device, Driver and PhysFn, which are those of the
	// PCI function, DataDirect and Role, which take more than one device to
	// tell. A virtual device's Driver is set.
	HCAs []machine.HCA
	// CM tells whether infiniband/rdma_cm is among the device nodes.
	CM bool
	// Absent says why there are none; empty if the class is there.
	Absent  string
	Skipped []machine.Skipped
}
