package sysfs_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/mxcd"
	"github.com/heddle-dev/heddle/discovery/sysfs"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// metaX writes a machine with one GPU of MetaX's, as the kernel lays it out.
func metaX(t *testing.T) *sysfstest.Tree {
	t.Helper()
	tree := sysfstest.New(t)
	dir := tree.PCI(sysfstest.Function{
		Path: "pci0000:00/0000:00:01.0/0000:08:00.0", Class: "0x038000", Vendor: "0x9999", Device: "0x4001", Driver: "metax",
	})
	tree.Dir(dir + "/drm/renderD128")
	tree.Link(dir+"/drm/renderD128/device", dir)
	tree.Write("sys/devices/virtual/mxcd/mxcd/layout/properties", "num_cpu_nodes 1")
	tree.Write("sys/devices/virtual/mxcd/mxcd/layout/nodes/0/properties", "cpu_cores_count 64")
	tree.Write("sys/devices/virtual/mxcd/mxcd/layout/nodes/1/properties", "mgpu_id 3")
	tree.Link("sys/class/mxcd/mxcd", "sys/devices/virtual/mxcd/mxcd")
	tree.Write("sys/module/metax/version", "3.4.4")
	// Of no interest: another maker's function.
	tree.PCI(sysfstest.Function{Path: "pci0000:00/0000:00:02.0", Class: "0x020000", Vendor: "0x15b3", Device: "0x1021"})
	// To be left alone: reading them does something, or they are no text.
	for _, name := range []string{"resource0", "rom", "config", "vpd"} {
		tree.Raw(dir+"/"+name, "secret")
	}
	tree.Raw(dir+"/blob", "\x00\xff")
	tree.Unreadable(dir + "/broken")
	return tree
}

func dump(t *testing.T, tree *sysfstest.Tree) string {
	t.Helper()
	var b strings.Builder
	if err := sysfs.New(tree.Sys()).Raw(&b, gpu.Vendors{mxcd.Vendor()}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A reader finds in a tree that is made of a dump what it finds on the machine: the
// dump has all that a maintainer needs.
func TestRaw(t *testing.T) {
	tree := metaX(t)
	text := dump(t, tree)
	again := sysfstest.New(t)
	for part := range strings.SplitSeq("\n"+text, "\n-- ") {
		name, content, ok := strings.Cut(part, " --\n")
		target, link := strings.CutPrefix(content, "-> ")
		switch {
		case !ok:
		case strings.HasSuffix(name, "/"):
			again.Dir("sys/" + name)
		case link:
			again.Link("sys/"+name, "sys/"+strings.TrimSpace(target))
		default:
			again.Raw("sys/"+name, content)
		}
	}
	read := func(tree *sysfstest.Tree) machine.GPU {
		l := mxcd.New(gpu.Options{SysfsRoot: tree.Sys(), DriverRoot: tree.Root})
		if _, n, err := l.Open(); n != 1 || err != nil {
			t.Fatalf("%d GPUs, %v in\n%s", n, err, text)
		}
		g, err := l.GPU(0)
		if _, incomplete := errors.AsType[gpu.IncompleteError](err); err != nil && !incomplete {
			t.Fatal(err)
		}
		return g
	}
	if diff := cmp.Diff(read(tree), read(again)); diff != "" {
		t.Errorf("(-machine +dump):\n%s\n%s", diff, text)
	}
	for _, word := range []string{"secret", "15b3", "\x00"} {
		if strings.Contains(text, word) {
			t.Errorf("%q in\n%s", word, text)
		}
	}
	if !strings.Contains(text, "blob --\n! 2 bytes of data\n") {
		t.Errorf("the blob is not named in\n%s", text)
	}
}

func TestRawIsBounded(t *testing.T) {
	tree := metaX(t)
	for i := range 5000 {
		tree.Write(fmt.Sprintf("sys/devices/virtual/mxcd/mxcd/many/%d", i), "x")
	}
	text := dump(t, tree)
	if n := strings.Count("\n"+text, "\n-- "); n != 4001 || !strings.Contains(text, "-- left-out --\n") {
		t.Errorf("%d files", n)
	}
}

// A writer that fails ends the dump with its error.
func TestRawToAFullDisk(t *testing.T) {
	err := sysfs.New(metaX(t).Sys()).Raw(full{}, gpu.Vendors{mxcd.Vendor()})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v", err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }
