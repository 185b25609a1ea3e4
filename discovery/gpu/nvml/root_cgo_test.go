//go:build cgo && linux

package nvml

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

func TestLibraryIn(t *testing.T) {
	for _, dir := range []string{"usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib"} {
		t.Run(dir, func(t *testing.T) {
			root := t.TempDir()
			if _, _, err := libraryIn(root); !errors.Is(err, gpu.ErrAbsent) {
				t.Fatalf("an empty root: %v, want gpu.ErrAbsent", err)
			}
			want := filepath.Join(root, dir, libraryName)
			if err := errors.Join(os.MkdirAll(filepath.Dir(want), 0o755), os.WriteFile(want, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			if got, file, err := libraryIn(root); err != nil || got != want || file != want {
				t.Errorf("got %q, %v, want %q", got, err, want)
			}
		})
	}
}

// TestSystemUnderARoot has a driver that comes after the daemon: first no
// library, then an invalid one.
func TestSystemUnderARoot(t *testing.T) {
	root := t.TempDir()
	l := New(gpu.Options{DriverRoot: root})
	if _, _, err := l.Open(); !errors.Is(err, gpu.ErrAbsent) {
		t.Fatalf("without a library: %v, want gpu.ErrAbsent", err)
	}
	file := filepath.Join(root, "usr/lib64", libraryName)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("no ELF"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Open(); err == nil {
		t.Error("an invalid library opens")
	}
}
