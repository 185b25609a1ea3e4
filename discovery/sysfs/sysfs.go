// Package sysfs reads the kernel's view of a machine: PCI functions and where
// they hang, NUMA nodes and network devices.
//
// It owns the reading of small files under a root that need not be /sys, and
// the pure parsers of their content. It never writes, never follows what it
// reads outside its root, and never decides what a device is for. A file that
// is absent is a state; a file that cannot be read or parsed is left out and
// named in a [machine.Skipped].
package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/api/machine"
)

// maxAttribute bounds one attribute, in bytes: sysfs gives a show function one
// page (Documentation/filesystems/sysfs.rst).
const maxAttribute = 4096

// FS is a tree of kernel objects.
type FS struct{ root string }

// New returns the tree under root, usually "/sys". Nothing is read yet.
func New(root string) FS { return FS{filepath.Clean(root)} }

// Root returns the directory that New was given, cleaned.
func (f FS) Root() string { return f.root }

// Path returns the file name of an object in the tree.
func (f FS) Path(name string) string { return f.root + "/" + name }

// Read returns an attribute without the white space around it. The error has
// the file and the reason. An attribute is taken in one read: a second one would run
// the driver's show function again.
func (f FS) Read(name string) (string, error) {
	var buf [maxAttribute]byte
	n, err := readOnce(f.Path(name), buf[:])
	if err != nil {
		return "", fmt.Errorf("read %s: %w", f.Path(name), err)
	}
	return strings.TrimSpace(string(buf[:n])), nil
}

// Text returns an attribute, or "" whatever went wrong.
func (f FS) Text(name string) string {
	text, err := f.Read(name)
	if err != nil {
		return ""
	}
	return text
}

// Bytes reads at most limit bytes of a binary attribute.
func (f FS) Bytes(name string, limit int) ([]byte, error) {
	buf := make([]byte, limit)
	n, err := readOnce(f.Path(name), buf)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Path(name), err)
	}
	return buf[:n], nil
}

// List returns the names in a directory, sorted as strings. A directory that
// does not exist has none.
func (f FS) List(name string) ([]string, error) {
	d, err := os.Open(f.Path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", f.Path(name), err)
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", f.Path(name), err)
	}
	slices.Sort(names)
	return names, nil
}

// Link returns where a symbolic link points, as a path relative to the root such as
// "devices/pci0000:10/0000:10:01.0", or "" if name is not a link or leads outside.
func (f FS) Link(name string) string {
	to, err := os.Readlink(f.Path(name))
	if err != nil {
		return ""
	}
	if filepath.IsAbs(to) {
		to = strings.TrimPrefix(to, f.root)
	} else {
		to = filepath.Join("/", filepath.Dir(name), to)
	}
	return strings.TrimPrefix(filepath.Clean(to), "/")
}

// Exists reports whether name is there, whatever it is.
func (f FS) Exists(name string) bool {
	_, err := os.Lstat(f.Path(name))
	return err == nil
}

// Unknown reports whether err means that the kernel has no answer, as opposed to a
// fault: the attribute is absent, or its driver rejects it for this device.
// EINVAL is how gid_attrs/ndevs and a down port's speed report it.
func Unknown(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EINVAL) ||
		errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENODATA)
}

// readOnce is open, one read, close, without the poller that os.Open tries to
// enlist every file with: sysfs attributes can be polled, and a scan reads
// hundreds of them. It can hang as long as the driver does; EAGAIN, which some
// drivers answer for ever, is returned.
func readOnce(path string, buf []byte) (int, error) {
	fd, err := retryEINTR(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return retryEINTR(func() (int, error) { return unix.Read(fd, buf) })
}

// retryEINTR repeats what a signal interrupted. The Go runtime preempts
// goroutines by signals, so that every system call can see one.
func retryEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

const nodeDir = "devices/system/node"

// NUMA reads the online memory nodes, by ID. A kernel without NUMA has none.
func (f FS) NUMA() ([]machine.NUMANode, []machine.Skipped, error) {
	names, err := f.List(nodeDir)
	if err != nil {
		return nil, nil, err
	}
	var nodes []machine.NUMANode
	var skipped []machine.Skipped
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, "node")
		id, err := strconv.Atoi(digits)
		if !ok || err != nil || id < 0 {
			continue // has_cpu, online, possible, power...
		}
		node := machine.NUMANode{ID: id}
		note := func(err error) { skipped = append(skipped, machine.Skipped{Name: name, Reason: err.Error()}) }
		text, err := f.Read(nodeDir + "/" + name + "/cpulist")
		if err == nil {
			text, err = parseCPUList(text)
		}
		if err != nil {
			note(err)
			continue
		}
		node.CPUs = text
		if text, err = f.Read(nodeDir + "/" + name + "/distance"); err == nil {
			node.Distances, err = parseDistances(text)
		}
		if err != nil && !Unknown(err) {
			note(err)
		}
		nodes = append(nodes, node)
	}
	return nodes, skipped, nil
}
