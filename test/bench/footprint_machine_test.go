//go:build cgo && linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/test/nvidia"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// nvidiaMajor is the number of NVIDIA's devices. Nothing opens them.
const nvidiaMajor = 195

// benchMachine has the files that all daemons read.
type benchMachine struct {
	tree   *sysfstest.Tree
	driver *nvidia.Driver
	dir    string
}

func newMachine(b *testing.B) *benchMachine {
	b.Helper()
	m := &benchMachine{tree: sysfstest.New(b), dir: b.TempDir()}
	sysfstest.DGXH100(m.tree)
	control := nvidia.Of(machines.Load(b, "dgx-h100"))
	control.Kernel = "550.54.15"
	for i := range control.GPUs {
		g := &control.GPUs[i]
		g.PCI = sysfstest.GPUAddress(i)
		// gpu-feature-discovery looks for capabilities and memory regions.
		m.tree.Raw(filepath.Join("sys/bus/pci/devices", g.PCI, "config"), string(make([]byte, 256)))
		m.tree.Write(filepath.Join("sys/bus/pci/devices", g.PCI, "resource"), strings.Repeat("0x0000000000000000 ", 3))
	}
	m.complete(b)
	var err error
	m.driver, err = nvidia.Install(b.Context(), filepath.Join(m.dir, "driver"), "usr/lib/"+nvidia.Triple(), control.Kernel)
	if err != nil {
		b.Fatal(err)
	}
	if err := errors.Join(m.driver.Set(control), m.driver.MakeNodes(control, nvidiaMajor)); err != nil {
		b.Fatal(err)
	}
	return m
}

// complete adds the files that NFD and Mellanox's plugin read and heddle does not.
func (m *benchMachine) complete(b *testing.B) {
	b.Helper()
	m.tree.Dir("sys/block")
	m.tree.Attributes("sys/devices/virtual/dmi/id", map[string]string{"sys_vendor": "NVIDIA", "product_name": "DGXH100"})
	for node := range 2 {
		m.tree.Write(fmt.Sprintf("sys/devices/system/node/node%d/meminfo", node), fmt.Sprintf("Node %d MemTotal: 1056778012 kB", node))
	}
	dir := filepath.Join(m.tree.Sys(), "bus/pci/devices")
	functions, err := os.ReadDir(dir)
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range functions {
		var ids [3]uint32
		for i, name := range []string{"vendor", "device", "class"} {
			text, err := os.ReadFile(filepath.Join(dir, f.Name(), name))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := fmt.Sscanf(string(text), "0x%x", &ids[i]); err != nil {
				b.Fatal(err)
			}
		}
		m.tree.Attributes(filepath.Join("sys/bus/pci/devices", f.Name()), map[string]string{
			"modalias": fmt.Sprintf("pci:v%08Xd%08Xsv%08Xsd%08Xbc%02Xsc%02Xi%02X",
				ids[0], ids[1], ids[0], 0, ids[2]>>16, ids[2]>>8&0xff, ids[2]&0xff),
			"subsystem_vendor": fmt.Sprintf("%#06x", ids[0]), "subsystem_device": "0x0000",
		})
	}
}
