//go:build linux

package vm

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Modes of the two kinds of entry that this initramfs has.
const (
	modeDir  = 0o040755
	modeFile = 0o100755
)

// archive writes a cpio archive of the form that the kernel unpacks, "newc"
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w io.Writer
	// inode numbers the entries: equal ones would be hard links.
	inode int
	err   error
}

func (a *archive) dir(name string) { a.entry(name, modeDir, nil) }

func (a *archive) file(name string, data []byte) { a.entry(name, modeFile, data) }

// close writes the trailer and returns the first error of all.
func (a *archive) close() error {
	a.inode = -1 // The trailer's number is 0.
	a.entry("TRAILER!!!", 0, nil)
	return a.err
}

func (a *archive) entry(name string, mode int, data []byte) {
	a.inode++
	// ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor,
	// rdevmajor, rdevminor, namesize, check.
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0) + name + "\x00"
	a.write([]byte(head))
	a.pad(len(head))
	a.write(data)
	a.pad(len(data))
}

func (a *archive) write(data []byte) {
	if a.err == nil {
		_, a.err = a.w.Write(data)
	}
}

// pad fills up to a multiple of four bytes.
func (a *archive) pad(n int) { a.write(make([]byte, -n&3)) }

// writeInitramfs packs the guest's root: the test binary as /init, and the
// modules, numbered in the order in which they are to be loaded.
func writeInitramfs(file, testBinary string, modules []string) error {
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	err = packInitramfs(f, testBinary, modules)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	return nil
}

func packInitramfs(w io.Writer, testBinary string, modules []string) error {
	a := &archive{w: w}
	for dir := range strings.FieldsSeq("dev proc sys tmp modules") {
		a.dir(dir)
	}
	init, err := os.ReadFile(testBinary)
	if err != nil {
		return err
	}
	a.file("init", init)
	for i, module := range modules {
		data, err := os.ReadFile(module)
		if err != nil {
			return err
		}
		a.file(fmt.Sprintf("modules/%02d_%s", i, filepath.Base(module)), data)
	}
	return a.close()
}
