package rdma

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// apart returns why netlink reports on another tree than that under root; empty if
// it does not.
func apart(root string) string {
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil || fs.Type != unix.SYSFS_MAGIC {
		return root + " is not the running kernel's sysfs"
	}
	return ""
}

// ask asks for the devices and the mode, and turns the library's panics on
// messages it does not expect into errors.
func ask() (got answer, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("RDMA netlink: %v", p)
		}
	}()
	h, err := netlink.NewHandle(unix.NETLINK_RDMA)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return got, errNoFamily
	}
	if err != nil {
		return got, fmt.Errorf("RDMA netlink: %w", err)
	}
	defer h.Close()
	if err := h.SetSocketTimeout(2 * time.Second); err != nil {
		return got, fmt.Errorf("RDMA netlink: %w", err)
	}
	list, err := dump(h.RdmaLinkList)
	if err != nil {
		return got, fmt.Errorf("RDMA devices: %w", err)
	}
	for _, l := range list {
		got.devices = append(got.devices, l.Attrs.Name)
	}
	// Kernels before 5.1 have no mode: every namespace sees every device.
	if got.mode, err = h.RdmaSystemGetNetnsMode(); err != nil {
		got.mode = ""
	}
	return got, nil
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
