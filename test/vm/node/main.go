//go:build linux

// Program node is the init of the guests of a bed: it makes soft RDMA devices on the rails and runs programs for the
// host, in a root of Debian's packages.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/test/vm"
	"github.com/heddle-dev/heddle/test/vm/guest"
)

func main() {
	if os.Getpid() != 1 || os.Getenv(vm.EnvGuest) == "" {
		fmt.Fprintln(os.Stderr, "node: this is the init of a guest only; see test/vm")
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "node:", run())
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	node, err := strconv.Atoi(os.Getenv(vm.EnvNode))
	if err != nil {
		return fmt.Errorf("number of the node: %w", err)
	}
	rails, err := strconv.Atoi(os.Getenv(vm.EnvRails))
	if err != nil {
		return fmt.Errorf("number of rails: %w", err)
	}
	if err := errors.Join(guest.Boot(), unix.Sethostname(fmt.Appendf(nil, "node-%d", node))); err != nil {
		return err
	}
	if err := connect(node, rails); err != nil {
		return err
	}
	if err := enterRoot(); err != nil {
		return err
	}
	return serve(rails)
}

// serve runs programs for the host. Open MPI's daemons talk on the control network.
func serve(rails int) error {
	for name, value := range map[string]string{
		"PATH": "/files:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp",
		"OMPI_MCA_oob_tcp_if_include": "eth" + strconv.Itoa(rails), "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self",
	} {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("environment: %w", err)
		}
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", ":"+vm.ExecPort)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return vm.Serve(l)
}

// connect brings up the network devices, with a soft RDMA device on each rail.
func connect(node, rails int) error {
	if err := guest.Up("lo"); err != nil {
		return err
	}
	for rail := range rails {
		netdev := fmt.Sprintf("eth%d", rail)
		if err := addAddress(netdev, vm.RailAddress(rail, node)); err != nil {
			return err
		}
		if err := netlink.RdmaLinkAdd(fmt.Sprintf("rxe%d", rail), "rxe", netdev); err != nil {
			return fmt.Errorf("RDMA device on %s: %w", netdev, err)
		}
	}
	return addAddress(fmt.Sprintf("eth%d", rails), vm.ControlAddress(node))
}

func addAddress(netdev, address string) error {
	if err := guest.Up(netdev); err != nil {
		return err
	}
	parsed, err := netlink.ParseAddr(address + "/24")
	if err != nil {
		return fmt.Errorf("address of %s: %w", netdev, err)
	}
	if err := netlink.AddrAdd(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: netdev}}, parsed); err != nil {
		return fmt.Errorf("address of %s: %w", netdev, err)
	}
	return nil
}

// enterRoot makes the folder of packages the root.
func enterRoot() error {
	const root, options = "/debian", "trans=virtio,version=9p2000.L,msize=262144,cache=loose"
	if err := os.Mkdir(root, 0o755); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	for _, m := range []struct{ source, target, kind, options string }{
		{vm.TagRoot, "", "9p", options},
		{vm.TagFiles, "/files", "9p", options},
		{"proc", "/proc", "proc", ""},
		{"sysfs", "/sys", "sysfs", ""},
		{"devtmpfs", "/dev", "devtmpfs", ""},
		{"tmpfs", "/tmp", "tmpfs", ""},
	} {
		var flags uintptr
		if m.kind == "9p" {
			flags = unix.MS_RDONLY
		}
		if err := unix.Mount(m.source, root+m.target, m.kind, flags, m.options); err != nil {
			return fmt.Errorf("mount %s%s: %w", root, m.target, err)
		}
	}
	shm := root + "/dev/shm"
	err := errors.Join(os.MkdirAll(shm, 0o755), unix.Mount("tmpfs", shm, "tmpfs", 0, ""),
		unix.Chroot(root), os.Chdir("/"))
	if err != nil {
		return fmt.Errorf("root: %w", err)
	}
	return nil
}
