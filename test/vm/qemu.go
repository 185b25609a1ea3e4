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
	if spec.PCITree {
		return append(args, tree()...)
	}
	args = append(args, "-m", "384")
	for i := range spec.NICs {
		args = append(args, nic(i, "")...)
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
func nic(i int, place string) []string {
	return []string{
		"-netdev", fmt.Sprintf("hubport,id=n%d,hubid=0", i),
		"-device", fmt.Sprintf("virtio-net-pci,netdev=n%d,mac=52:54:00:00:00:%02x,romfile=%s", i, i, place),
	}
}

// The tree of a machine with eight GPUs and eight NICs.
const (
	treeNodes    = 2
	treeSwitches = 2 // By NUMA node.
	treePairs    = 2 // Of one display and one network function, by switch.
)

// tree is two NUMA nodes, each with a host bridge of its own (pxb-pcie), under
// that two root ports, under each of those one switch, and under every switch
// two "GPUs" (bochs-display, class 0x0380) and two NICs. As in the real
// machines: no link between the switches but the host bridge.
func tree() []string {
	args := []string{"-m", "640", "-smp", "2"}
	for node := range treeNodes {
		args = append(args,
			"-object", fmt.Sprintf("memory-backend-ram,id=m%d,size=320M", node),
			"-numa", fmt.Sprintf("node,nodeid=%d,cpus=%d,memdev=m%d", node, node, node))
	}
	args = append(args, "-numa", "dist,src=0,dst=1,val=21")
	chassis, nics := 0, 0
	for node := range treeNodes {
		args = append(args, "-device",
			fmt.Sprintf("pxb-pcie,id=pxb%d,bus=pcie.0,bus_nr=%d,numa_node=%d", node, 0x40*(node+1), node))
		for s := range treeSwitches {
			id := node*treeSwitches + s
			chassis++
			args = append(args,
				"-device", fmt.Sprintf("pcie-root-port,id=rp%d,bus=pxb%d,chassis=%d,slot=%d", id, node, chassis, chassis),
				"-device", fmt.Sprintf("x3130-upstream,id=up%d,bus=rp%d", id, id))
			for port := range 2 * treePairs {
				chassis++
				bus := fmt.Sprintf("dn%d%d", id, port)
				args = append(args, "-device",
					fmt.Sprintf("xio3130-downstream,id=%s,bus=up%d,chassis=%d,slot=%d", bus, id, chassis, chassis))
				if port < treePairs {
					args = append(args, "-device", "bochs-display,vgamem=4M,romfile=,bus="+bus)
					continue
				}
				args = append(args, nic(nics, ",disable-legacy=on,bus="+bus)...)
				nics++
			}
		}
	}
	return args
}
