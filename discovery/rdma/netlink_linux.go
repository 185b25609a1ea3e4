package rdma

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/api/machine"
)

// Netlink reads RDMA netlink (NETLINK_RDMA).
type Netlink struct {
	// apart says why netlink is not to be asked.
	apart string
}

// NewNetlink returns a reader that goes with the sysfs tree under root. Netlink
// tells of the running kernel, so it is asked only if root is that kernel's
// sysfs, wherever it is mounted.
func NewNetlink(root string) Netlink {
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil || fs.Type != unix.SYSFS_MAGIC {
		return Netlink{apart: root + " is not the running kernel's sysfs"}
	}
	return Netlink{}
}

// Read tells the network namespace mode and notes where netlink sees other
// devices than hcas.
func (n Netlink) Read(hcas []machine.HCA) (mode string, notes []machine.Skipped, probe machine.Probe) {
	probe = machine.Probe{Name: NetlinkProbe, State: machine.ProbeOK}
	if n.apart != "" {
		probe.State, probe.Reason = machine.ProbeAbsent, n.apart
		return "", nil, probe
	}
	mode, links, err := ask()
	switch {
	// The kernel has no such netlink family, or ib_core is not loaded.
	case errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT):
		probe.State, probe.Reason = machine.ProbeAbsent, "the kernel has no RDMA netlink: ib_core is not loaded"
		return "", nil, probe
	case err != nil:
		probe.State, probe.Reason = machine.ProbeFailed, err.Error()
		return mode, nil, probe
	}
	return mode, compare(hcas, links), probe
}

// ask bounds netlink's answers by a timeout, and turns the library's panics on
// messages it does not expect into errors.
func ask() (mode string, links []linkInfo, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("RDMA netlink: %v", p)
		}
	}()
	h, err := netlink.NewHandle(unix.NETLINK_RDMA)
	if err != nil {
		return "", nil, fmt.Errorf("RDMA netlink: %w", err)
	}
	defer h.Close()
	if err := h.SetSocketTimeout(2 * time.Second); err != nil {
		return "", nil, fmt.Errorf("RDMA netlink: %w", err)
	}
	list, err := dump(h.RdmaLinkList)
	if err != nil {
		return "", nil, fmt.Errorf("RDMA devices: %w", err)
	}
	for _, l := range list {
		links = append(links, linkInfo{name: l.Attrs.Name, nodeGUID: ReverseGUID(l.Attrs.NodeGuid)})
	}
	// Kernels before 5.1 have no mode: every namespace sees every device.
	if mode, err = h.RdmaSystemGetNetnsMode(); err != nil {
		mode = ""
	}
	return mode, links, nil
}

// dump repeats a dump that changed while it was read. What the last attempt
// gave is taken: netlink returns the data with the error.
func dump(list func() ([]*netlink.RdmaLink, error)) (links []*netlink.RdmaLink, err error) {
	for range 5 {
		links, err = list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return links, err
		}
	}
	return links, nil
}
