package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCopyFile: the same bytes leave the file as it is; others come as another file, so
// that who has the old one mapped keeps it; and nothing else is in the directory.
func TestCopyFile(t *testing.T) {
	image, node := t.TempDir(), t.TempDir()
	from, to := filepath.Join(image, "libvgpu.so"), filepath.Join(node, "library", "libvgpu.so")
	deliver := func(content string) os.FileInfo {
		t.Helper()
		err := errors.Join(os.WriteFile(from, []byte(content), 0o600), copyFile([]string{from, to}))
		got, readErr := os.ReadFile(to)
		info, statErr := os.Stat(to)
		if err = errors.Join(err, readErr, statErr); err != nil || string(got) != content {
			t.Fatalf("%q is delivered, error %v", got, err)
		}
		return info
	}
	first := deliver("one")
	if first.Mode().Perm() != 0o755 {
		t.Errorf("mode %v", first.Mode())
	}
	if again := deliver("one"); !os.SameFile(first, again) || !again.ModTime().Equal(first.ModTime()) {
		t.Error("the same bytes were written again")
	}
	if second := deliver("two"); os.SameFile(first, second) {
		t.Error("the file was written over")
	}
	if left, err := os.ReadDir(filepath.Dir(to)); err != nil || len(left) != 1 {
		t.Errorf("left are %v, %v", left, err)
	}
}

func TestCopyFileRejects(t *testing.T) {
	dir := t.TempDir()
	empty, large := filepath.Join(dir, "empty"), filepath.Join(dir, "large")
	err := errors.Join(os.WriteFile(empty, nil, 0o600), os.WriteFile(large, nil, 0o600), os.Truncate(large, maxCopy+1))
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "to")
	for _, tt := range []struct {
		name, want string
		args       []string
	}{
		{"nothing", "want a file of the image", nil},
		{"no target", "want a file of the image", []string{empty}},
		{"no such file", "in the image: stat " + dir + "/none", []string{dir + "/none", to}},
		{"a directory", dir + " is not a file", []string{dir, to}},
		{"empty", "empty has 0 bytes", []string{empty, to}},
		{"large", "large has 67108865 bytes", []string{large, to}},
		{"nowhere", "to the node:", []string{"copy.go", empty + "/to"}},
	} {
		if err := copyFile(tt.args); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		}
	}
	if _, err := os.Stat(to); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target is there: %v", err)
	}
}
