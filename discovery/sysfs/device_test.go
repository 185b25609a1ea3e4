package sysfs

import (
	"os"
	"path/filepath"
	"testing"
)

// A device's own attributes are read once, and again when another device takes its place.
func TestFixed(t *testing.T) {
	root := t.TempDir()
	device := func(class string) {
		t.Helper()
		dir := filepath.Join(root, "device")
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "class"), []byte(class+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := New(root)
	read := func(want string) {
		t.Helper()
		if got, err := f.Device("device").Fixed("class"); err != nil || got != want {
			t.Errorf("class %q, %v, want %q", got, err, want)
		}
	}
	if _, err := f.Device("device").Fixed("class"); !Unknown(err) {
		t.Errorf("without a device: %v", err)
	}
	device("0x030200")
	read("0x030200")
	if err := os.WriteFile(filepath.Join(root, "device", "class"), []byte("never"), 0o600); err != nil {
		t.Fatal(err)
	}
	read("0x030200")
	device("0x020700")
	read("0x020700")
	if _, err := f.Device("device").Fixed("vendor"); !Unknown(err) {
		t.Errorf("an attribute that is not there: %v", err)
	}
}

func TestFixedIsBounded(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "a"), []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := New(root)
	for inode := range uint64(2 * maxFixed) {
		d := Device{FS: f, at: identity{inode: inode + 1}}
		if text, err := d.Fixed("a"); err != nil || text != "1" {
			t.Fatal(text, err)
		}
	}
	if n := len(f.fixed.known); n > maxFixed {
		t.Errorf("%d are remembered, more than %d", n, maxFixed)
	}
}
