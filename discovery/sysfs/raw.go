package sysfs

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// The bounds of a raw dump: files, bytes of their contents, and how deep it goes.
const (
	maxRawFiles = 4000
	maxRawBytes = 4 << 20
	maxRawDepth = 8
)

// unreadable reports whether a file of a PCI function's directory is not text, or can do
// something when they are read: its memory, its ROM, its configuration space.
func unreadable(name string) bool {
	prefixes := []string{"resource", "rom", "config", "vpd", "edid", "remove", "rescan", "reset"}
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// Raw writes what a maintainer needs of GPUs that a reader does not know: the files of
// the vendors' own classes and modules, and of their functions on the PCI bus, in the
// form of txtar: a line with the name, then the content. A link is written as where it
// points. Each name is written before the file is read, so that the last one of a dump
// that ends early is the file that hangs. What is left out is the last line.
func (f FS) Raw(w io.Writer, vendors gpu.Vendors) error {
	d := &raw{fs: f, w: w}
	for _, v := range vendors {
		for _, name := range v.Raw {
			d.tree(name, 0)
		}
	}
	addresses, err := f.List(strings.TrimSuffix(pciDevices, "/"))
	if err != nil {
		return err
	}
	for _, address := range addresses {
		// A function that cannot be read is not a vendor's GPU.
		class, _ := f.word(address, "class")
		vendor, _ := f.word(address, "vendor")
		if slices.ContainsFunc(vendors, func(v *gpu.Vendor) bool {
			return v.PCI.Vendor == vendor && !strings.HasPrefix(class, "0x0604")
		}) {
			d.tree(pciDevices+address, 0)
		}
	}
	if d.left > 0 {
		d.print("-- left-out --\n%d files: more than %d, or than %d bytes\n", d.left, maxRawFiles, maxRawBytes)
	}
	return d.err
}

// raw is a dump in the making.
type raw struct {
	fs                 FS
	w                  io.Writer
	files, bytes, left int
	err                error
}

func (d *raw) print(format string, args ...any) {
	if d.err != nil {
		return
	}
	n, err := fmt.Fprintf(d.w, format, args...)
	d.bytes += n
	if err != nil {
		d.err = fmt.Errorf("write dump: %w", err)
	}
}

// tree writes a directory, or a file. Links are followed at the top alone, where the
// classes of sysfs and the PCI bus have nothing else.
func (d *raw) tree(name string, depth int) {
	info, err := os.Lstat(d.fs.Path(name))
	switch {
	case err != nil || depth > maxRawDepth:
		return
	case d.files >= maxRawFiles || d.bytes >= maxRawBytes || d.err != nil:
		d.left++
		return
	case info.Mode()&os.ModeSymlink != 0 && depth > 1:
		d.files++
		d.print("-- %s --\n-> %s\n", name, d.fs.Link(name))
		return
	case info.Mode().IsRegular():
		d.file(name, info)
		return
	}
	names, err := d.fs.List(name)
	if err != nil {
		d.files++
		d.print("-- %s --\n! %v\n", name, err)
		return
	}
	if len(names) == 0 {
		d.files++
		d.print("-- %s/ --\n", name)
	}
	for _, child := range names {
		// The children of a function are one deeper: their links lead everywhere.
		d.tree(path.Join(name, child), depth+1+cmp.Compare(strings.Index(name, pciDevices), -1))
	}
}

func (d *raw) file(name string, info os.FileInfo) {
	if info.Mode().Perm()&0o444 == 0 || unreadable(path.Base(name)) {
		return
	}
	d.files++
	d.print("-- %s --\n", name)
	text, err := d.fs.Read(name)
	switch {
	case err != nil:
		d.print("! %v\n", err)
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		d.print("! %d bytes of data\n", len(text))
	case text != "":
		d.print("%s\n", text)
	}
}
