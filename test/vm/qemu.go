package vm

import (
	"fmt"
	"strings"
)

// EnvGuest is set, by way of the kernel's command line, for the init of a
// guest; its absence keeps a guest's tests from running anywhere else.
const EnvGuest = "HEDDLE_GUEST"

// arguments are QEMU's.
func arguments(kernel, initramfs string, spec Spec) []string {
	args := []string{
		"-machine", "q35", "-accel", "tcg,thread=single", "-cpu", "Nehalem", "-nodefaults", "-display", "none",
		"-no-reboot", "-serial", "stdio", "-kernel", kernel, "-initrd", initramfs,
		"-device", fmt.Sprintf("isa-debug-exit,iobase=%#x,iosize=4", DebugExitPort),
		"-append", commandLine(spec.Args),
	}
	args = append(args, "-m", "384")
	for i := range spec.NICs {
		args = append(args, nic(i)...)
	}
	return args
}

// commandLine is the kernel's. Every wait that emulation cannot afford is off;
// a panic ends the guest at once; a word with = that the kernel does not know
// becomes a variable of init's environment, and what follows -- its arguments.
func commandLine(args []string) string {
	words := []string{
		"console=ttyS0", "quiet", "panic=-1", "mitigations=off", "tsc=reliable", "no_timer_check",
		"random.trust_cpu=on", "net.ifnames=0", EnvGuest + "=1", "--", "-test.v",
	}
	for _, arg := range args {
		words = append(words, `"`+arg+`"`)
	}
	return strings.Join(words, " ")
}

// nic is one virtio network device; all share one hub, which leads nowhere.
func nic(i int) []string {
	return []string{
		"-netdev", fmt.Sprintf("hubport,id=n%d,hubid=0", i),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=n%d,mac=52:54:00:00:00:%02x,romfile=", i, i),
	}
}
