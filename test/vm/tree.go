package vm

import "fmt"

// tree builds QEMU's arguments for a PCIe tree.
type tree struct {
	args []string
	// chassis numbers the ports, nics the network devices.
	chassis, nics int
}

// pcieTree is the machine of Spec.PCITree. Node 0 has one host bridge with two
// switches, node 1 the same and a second host bridge:
//
//	pci0000:40, node 0: switch A, switch B
//	pci0000:80, node 1: switch C, switch D, and under D a switch E
//	pci0000:c0, node 1: no switch; a display and a network function
//
// A to D have two "GPUs" (bochs-display, class 0x0380) and two NICs each, E has
// one of each. Every switch hangs from a root port of its own: as in the real
// machines, nothing but the host bridge links two of them.
func pcieTree() []string {
	t := &tree{args: []string{"-m", "640", "-smp", "2"}}
	for node := range 2 {
		t.add("-object", "memory-backend-ram,id=m%d,size=320M", node)
		t.add("-numa", "node,nodeid=%d,cpus=%d,memdev=m%d", node, node, node)
	}
	t.add("-numa", "dist,src=0,dst=1,val=21")
	for node := range 2 {
		t.hostBridge(node, node)
		for s := range 2 {
			name := string(rune('A' + 2*node + s))
			t.switchAt(name, t.rootPort(node), 2)
		}
	}
	t.switchAt("E", t.downstream("D", 4), 1)
	t.hostBridge(2, 1)
	t.gpu(t.rootPort(2))
	t.nic(t.rootPort(2))
	return t.args
}

func (t *tree) add(option, format string, values ...any) {
	t.args = append(t.args, option, fmt.Sprintf(format, values...))
}

// hostBridge is a root bus of its own on a NUMA node; bus numbers leave room
// for what hangs below.
func (t *tree) hostBridge(id, node int) {
	t.add("-device", "pxb-pcie,id=pxb%d,bus=pcie.0,bus_nr=%d,numa_node=%d", id, 0x40*(id+1), node)
}

func (t *tree) rootPort(bridge int) (bus string) {
	t.chassis++
	t.add("-device", "pcie-root-port,id=rp%d,bus=pxb%d,chassis=%d,slot=%d", t.chassis, bridge, t.chassis, t.chassis)
	return fmt.Sprintf("rp%d", t.chassis)
}

// switchAt is a switch with pairs of a display and a network function.
func (t *tree) switchAt(name, bus string, pairs int) {
	t.add("-device", "x3130-upstream,id=up%s,bus=%s", name, bus)
	for i := range pairs {
		t.gpu(t.downstream(name, i))
	}
	for i := range pairs {
		t.nic(t.downstream(name, pairs+i))
	}
}

// downstream is a port of a switch.
func (t *tree) downstream(name string, port int) (bus string) {
	t.chassis++
	t.add("-device", "xio3130-downstream,id=dn%s%d,bus=up%s,chassis=%d,slot=%d", name, port, name, t.chassis, t.chassis)
	return fmt.Sprintf("dn%s%d", name, port)
}

func (t *tree) gpu(bus string) { t.add("-device", "bochs-display,vgamem=4M,romfile=,bus=%s", bus) }

func (t *tree) nic(bus string) {
	t.args = append(t.args, nic(t.nics, ",disable-legacy=on,bus="+bus)...)
	t.nics++
}
