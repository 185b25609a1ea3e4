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

// netnsMode asks RDMA netlink (NETLINK_RDMA) for the network namespace mode, and turns the library's
// panics on messages it does not expect into errors. Kernels before 5.1 have no mode: every
// namespace sees every device.
func netnsMode() (mode string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("RDMA netlink: %v", p)
		}
	}()
	h, err := netlink.NewHandle(unix.NETLINK_RDMA)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return "", errNoFamily
	}
	if err != nil {
		return "", fmt.Errorf("RDMA netlink: %w", err)
	}
	defer h.Close()
	if err := h.SetSocketTimeout(2 * time.Second); err != nil {
		return "", fmt.Errorf("RDMA netlink: %w", err)
	}
	mode, err = h.RdmaSystemGetNetnsMode()
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) {
		return "", fmt.Errorf("RDMA network namespace mode: %w", err)
	}
	return mode, nil
}
