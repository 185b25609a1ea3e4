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
	"fmt"
	"strings"
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

// Spec is one boot.
type Spec struct {
	// TestBinary is a static test binary that calls guest.Main.
	TestBinary string
	// Args follow -test.v: "-test.run=…". The kernel takes 32 at most.
	Args []string
	// NICs is how many virtio network devices there are: eth0, eth1, …, all on
	// one hub, unconnected to the host.
	NICs int
	// Timeout bounds the boot and the tests; 0 is two minutes.
	Timeout time.Duration
}

const defaultTimeout = 2 * time.Minute

// Result is what a guest reported.
type Result struct {
	Outcome Outcome
	// Output is the serial console's, without carriage returns.
	Output string
	// Tests are the top-level tests that the output reports, in order.
	Tests []Test
	Took  time.Duration
}

// Test is the fate of one test in the guest.
type Test struct {
	Name    string
	Outcome string // PASS, FAIL or SKIP.
}

// Outcome is how a boot ended.
type Outcome uint8

// The outcomes.
const (
	// Died means that the guest ended without a word: a kernel panic, or a
	// test binary that crashed.
	Died Outcome = iota
	// Passed and Failed are what the guest's tests returned.
	Passed
	Failed
	// TimedOut means that QEMU was killed for want of time.
	TimedOut
	// NotStarted means that QEMU itself gave up, before or beside the guest.
	NotStarted
)

// String is the outcome's word.
func (v Outcome) String() string {
	switch v {
	case Passed:
		return "passed"
	case Failed:
		return "failed"
	case TimedOut:
		return "timed out"
	case NotStarted:
		return "rejected by QEMU"
	case Died:
	}
	return "died without an outcome"
}

// MissingError names what this machine lacks to boot guests at all. A test that
// meets it skips, with this reason.
type MissingError struct {
	// What is absent, and Remedy how to get it.
	What, Remedy string
}

// Error names both.
func (e *MissingError) Error() string { return fmt.Sprintf("%s (%s)", e.What, e.Remedy) }

// testsOf finds the results of top-level tests in the output of a test binary
// run with -test.v. The kernel may write to the same console, so a result need
// not start a line.
func testsOf(output string) []Test {
	var tests []Test
	for line := range strings.Lines(output) {
		_, result, ok := strings.Cut(line, "--- ")
		if !ok || strings.HasPrefix(line, " ") {
			continue
		}
		outcome, rest, ok := strings.Cut(result, ": ")
		if !ok || (outcome != "PASS" && outcome != "FAIL" && outcome != "SKIP") {
			continue
		}
		if name, _, ok := strings.Cut(rest, " ("); ok && !strings.Contains(name, "/") {
			tests = append(tests, Test{Name: name, Outcome: outcome})
		}
	}
	return tests
}
