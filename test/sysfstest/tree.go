// Package sysfstest writes trees of kernel objects for tests: /sys, /dev and
// /proc under one directory, with the links that the kernel makes.
//
// It owns the shape of such a tree, as a kernel of 2026 lays it out; what a
// machine in it looks like is the caller's. It is for tests only and fails
// them when it cannot write.
package sysfstest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Tree is a directory with sys, dev and proc in it.
type Tree struct {
	t testing.TB
	// Root is the directory.
	Root string
}

// New returns an empty tree in a directory of the test's own, in memory where
// the system has a place for that: a tree is some eight hundred small files.
func New(tb testing.TB) *Tree {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "sysfstest") //nolint:usetesting // TempDir is on disk.
	if err != nil {
		return At(tb, tb.TempDir())
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return At(tb, dir)
}

// At returns an empty tree in a directory that the caller keeps.
func At(tb testing.TB, root string) *Tree {
	tb.Helper()
	tree := &Tree{t: tb, Root: root}
	for _, dir := range []string{"sys/bus/pci/devices", "sys/class", "dev", "proc"} {
		tree.Dir(dir)
	}
	return tree
}

// Sys, Dev and Proc are the roots to give a reader.
func (t *Tree) Sys() string { return filepath.Join(t.Root, "sys") }

// Dev is the root of device nodes.
func (t *Tree) Dev() string { return filepath.Join(t.Root, "dev") }

// Proc is the root of the process file system.
func (t *Tree) Proc() string { return filepath.Join(t.Root, "proc") }

// Dir makes a directory.
func (t *Tree) Dir(name string) {
	t.t.Helper()
	if err := os.MkdirAll(filepath.Join(t.Root, name), 0o750); err != nil {
		t.t.Fatal(err)
	}
}

// Write writes an attribute with the newline that the kernel ends it with.
func (t *Tree) Write(name, text string) { t.t.Helper(); t.Raw(name, text+"\n") }

// Raw writes a file as it is.
func (t *Tree) Raw(name, text string) {
	t.t.Helper()
	t.Dir(filepath.Dir(name))
	if err := os.WriteFile(filepath.Join(t.Root, name), []byte(text), 0o600); err != nil {
		t.t.Fatal(err)
	}
}

// Remove removes a file, a link, or a directory with all in it.
func (t *Tree) Remove(name string) {
	t.t.Helper()
	if err := os.RemoveAll(filepath.Join(t.Root, name)); err != nil {
		t.t.Fatal(err)
	}
}

// Link makes name a relative link to another path of the tree, as all links
// of sysfs are.
func (t *Tree) Link(name, to string) {
	t.t.Helper()
	t.Dir(filepath.Dir(name))
	relative, err := filepath.Rel(filepath.Dir(name), to)
	if err != nil {
		t.t.Fatal(err)
	}
	if err := os.Symlink(relative, filepath.Join(t.Root, name)); err != nil {
		t.t.Fatal(err)
	}
}

// Unreadable puts a directory where an attribute was: reading it fails with
// EISDIR, for root too, as a driver's show function does with EIO.
func (t *Tree) Unreadable(name string) {
	t.t.Helper()
	t.Remove(name)
	t.Dir(name)
}

// Attributes writes several attributes of one object.
func (t *Tree) Attributes(dir string, attributes map[string]string) {
	t.t.Helper()
	for name, text := range attributes {
		t.Write(dir+"/"+name, text)
	}
}

// Node writes a NUMA node.
func (t *Tree) Node(id int, cpus, distance string) {
	t.t.Helper()
	dir := fmt.Sprintf("sys/devices/system/node/node%d", id)
	t.Attributes(dir, map[string]string{"cpulist": cpus, "distance": distance})
}

// CPUInfo writes /proc/cpuinfo with one block per text and the kernel release.
func (t *Tree) CPUInfo(release string, blocks ...string) {
	t.t.Helper()
	t.Raw("proc/cpuinfo", strings.Join(blocks, "\n\n")+"\n\n")
	t.Write("proc/sys/kernel/osrelease", release)
}
