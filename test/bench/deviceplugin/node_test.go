//go:build cgo && linux

package deviceplugin

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/test/nvidia"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// node is a machine that plugins read.
type node struct {
	gpus   int
	driver string   // its root
	flags  []string // heddle's, for the rest of the machine
}

// here is this machine with its own driver, where programs are prebuilt (make hardware).
func here(b *testing.B) (n node, ok bool) {
	b.Helper()
	if cluster.Prebuilt() == "" {
		return node{}, false
	}
	found, err := filepath.Glob("/proc/driver/nvidia/gpus/*")
	if err != nil || len(found) == 0 {
		b.Skip("no GPU of NVIDIA is here: ", err)
	}
	return node{gpus: len(found), driver: "/"}, true
}

// dgx is a DGX H100, whose HCAs make 512 shared devices, or this machine.
func dgx(b *testing.B) node { b.Helper(); return newNode(b, true) }

// gpusAlone is a DGX whose HCAs have no driver, or this machine: the plugin has one resource, as
// NVIDIA's has.
func gpusAlone(b *testing.B) node { b.Helper(); return newNode(b, false) }

func newNode(b *testing.B, hcas bool) node {
	b.Helper()
	if n, ok := here(b); ok {
		return n
	}
	tree := sysfstest.New(b)
	sysfstest.DGXH100(tree)
	if !hcas {
		if err := os.RemoveAll(filepath.Join(tree.Sys(), "class/infiniband")); err != nil {
			b.Fatal(err)
		}
	}
	return node{gpus: 8, driver: installDriver(b).Root, flags: []string{
		"--sysfs-root", tree.Sys(), "--proc-root", tree.Proc(), "--dev-root", tree.Dev(),
	}}
}

// program is a prebuilt one, of heddle or of its peers, or what build makes, which may be the file
// that it gets.
func program(b *testing.B, dir, name string, build func(file string) (string, error)) string {
	b.Helper()
	if prebuilt := cluster.Prebuilt(); prebuilt != "" {
		return filepath.Join(prebuilt, dir, name)
	}
	file, err := build(filepath.Join(b.TempDir(), name))
	if err != nil {
		b.Fatal(err)
	}
	return file
}

func goBuild(args ...string) error {
	if out, err := exec.Command("go", append([]string{"build"}, args...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// installDriver makes the driver of the GPUs that the tree of a DGX has.
func installDriver(b *testing.B) *nvidia.Driver {
	b.Helper()
	c := nvidia.Of(machines.Load(b, "dgx-h100"))
	for i := range c.GPUs {
		c.GPUs[i].PCI = sysfstest.GPUAddress(i)
	}
	const version = "550.54.15"
	c.Kernel = version
	d, err := nvidia.Install(b.Context(), b.TempDir(), "usr/lib/"+nvidia.Triple(), version)
	if err != nil {
		b.Fatal(err)
	}
	if err := d.Set(c); err != nil {
		b.Fatal(err)
	}
	// NVIDIA's major number. Nothing opens them.
	if err := d.MakeNodes(c, 195); errors.Is(err, unix.EPERM) {
		b.Skip("device nodes cannot be made here: ", err)
	} else if err != nil {
		b.Fatal(err)
	}
	return d
}
