//go:build linux

// Package vm boots a Linux guest in QEMU whose init is a Go test binary: real
// RDMA netlink, real device nodes and a real PCI tree on a machine that has
// neither RDMA nor a kernel built for it.
//
// It owns the fetching of a kernel, the packing of an initramfs and the life
// of one QEMU child. It needs no root, no disk image and no host network, it
// installs nothing, and it keeps what it fetches in a cache outside the
// repository. Emulation (TCG) is always used: a /dev/kvm that opens is no
// promise that it works.
package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Guest is a kernel that is ready to boot.
type Guest struct {
	// Version is the kernel package with its version, the key in the cache.
	Version string
	// Kernel is the file of the uncompressed kernel, an ELF with a PVH entry:
	// under emulation, unpacking a bzImage takes longer than everything else.
	Kernel string
	// Modules are the files of kernel modules, each after those it needs.
	Modules []string
}

// MissingError names what this machine lacks to boot guests at all. A test that
// meets it skips, with this reason.
type MissingError struct {
	// What is absent, and Remedy how to get it.
	What, Remedy string
}

// Error names both.
func (e *MissingError) Error() string { return fmt.Sprintf("%s (%s)", e.What, e.Remedy) }

// EnvGuest is set, by way of the kernel's command line, for the init of a
// guest; its absence keeps a guest's tests from running anywhere else.
const EnvGuest = "HEDDLE_GUEST"

// What the guest writes to the port of isa-debug-exit. QEMU then exits with
// twice the value plus one (hw/misc/debugexit.c). Zero would be QEMU's own
// code for a failure, and could not be distinguished from it.
const (
	// DebugExitPort is the address, written through /dev/port.
	DebugExitPort = 0xf4
	// CodePassed and CodeFailed are the values.
	CodePassed = 0x10
	CodeFailed = 0x11
)

// timeout bounds the boot and the tests.
const timeout = 2 * time.Minute

// Run boots the guest with a static test binary that calls guest.Main, and returns what came from
// the serial line and from QEMU itself. It has three virtio network devices, all on one hub, unconnected to
// the host. Without an error the guest's tests passed.
func (g *Guest) Run(ctx context.Context, testBinary string, args ...string) (output string, err error) {
	dir, err := os.MkdirTemp("", "heddle-vm-")
	if err != nil {
		return "", fmt.Errorf("guest: %w", err)
	}
	defer os.RemoveAll(dir)
	initramfs := filepath.Join(dir, "initramfs")
	if err := writeInitramfs(initramfs, testBinary, g.Modules); err != nil {
		return "", fmt.Errorf("guest: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// Pdeathsig is bound to the thread that starts the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", g.arguments(initramfs, args)...)
	var console bytes.Buffer
	cmd.Stdout, cmd.Stderr = &console, &console
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	output = strings.ReplaceAll(console.String(), "\r", "")
	switch code := cmd.ProcessState.ExitCode(); {
	case ctx.Err() != nil:
		return output, fmt.Errorf("guest: %w", ctx.Err())
	case code == 2*CodePassed+1:
		return output, nil
	case code == 2*CodeFailed+1:
		return output, errors.New("the guest's tests failed")
	case err == nil:
		return output, errors.New("the guest died without an outcome")
	}
	return output, fmt.Errorf("guest: %w", err)
}

// arguments are QEMU's for the guest of Run. What follows -- are the arguments of its init.
func (g *Guest) arguments(initramfs string, args []string) []string {
	words := []string{"--", "-test.v"}
	for _, arg := range args {
		words = append(words, `"`+arg+`"`)
	}
	all := g.machine(initramfs, words...)
	for i := range 3 {
		all = append(all,
			"-netdev", fmt.Sprintf("hubport,id=n%d,hubid=0", i),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=n%d,mac=52:54:00:00:00:%02x,romfile=", i, i))
	}
	return all
}

// machine returns QEMU's arguments for a guest without network devices. On the kernel's command line every wait that
// emulation cannot afford is off; a panic ends the guest at once; a word with = that the kernel does not know becomes
// a variable of init's environment.
func (g *Guest) machine(initramfs string, words ...string) []string {
	words = append([]string{
		"console=ttyS0", "quiet", "panic=-1", "mitigations=off", "tsc=reliable", "no_timer_check",
		"random.trust_cpu=on", "net.ifnames=0", EnvGuest + "=1",
	}, words...)
	return []string{
		"-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "Nehalem", "-nodefaults", "-display", "none",
		"-no-reboot", "-serial", "stdio", "-kernel", g.Kernel, "-initrd", initramfs,
		"-device", fmt.Sprintf("isa-debug-exit,iobase=%#x,iosize=4", DebugExitPort),
		"-append", strings.Join(words, " "), "-m", "384",
	}
}
