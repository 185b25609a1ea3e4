//go:build cgo && linux

package nvml

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
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

// Each node is looked at for itself, and again: wherever its driver is, a daemon
// with the host's root finds it without a value, and needs no part of NVIDIA's runtime.
func TestFind(t *testing.T) {
	const library = "usr/lib64/" + libraryName
	for _, tt := range []struct {
		name  string
		o     gpu.Options
		files []string
		root  string // Empty if there is no driver.
	}{
		{"NVIDIA's runtime is the default", gpu.Options{}, []string{library, "etc/nvidia-container-runtime/config.toml"}, "/"},
		{"a RuntimeClass", gpu.Options{}, []string{library, "usr/bin/nvidia-container-runtime"}, "/"},
		{"the driver alone", gpu.Options{}, []string{library}, "/"},
		{"a driver container", gpu.Options{}, []string{"run/nvidia/driver/" + library}, "/run/nvidia/driver"},
		{"CDI only", gpu.Options{}, []string{library, "etc/cdi/nvidia.yaml"}, "/"},
		{"a driver container, and one that is left on the host", gpu.Options{}, []string{library, "run/nvidia/driver/" + library}, "/run/nvidia/driver"},
		{"GKE", gpu.Options{}, []string{gke + "/lib64/" + libraryName}, "/"},
		{"named", gpu.Options{DriverRoot: "/opt/driver"}, []string{library, "opt/driver/" + library}, "/opt/driver"},
		{"named, and not there", gpu.Options{DriverRoot: "/opt/driver"}, []string{library}, ""},
		{"no driver", gpu.Options{}, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.o.HostRoot = t.TempDir()
			if _, _, _, err := find(tt.o); !errors.Is(err, gpu.ErrAbsent) {
				t.Errorf("before the driver comes: %v", err)
			}
			for _, name := range tt.files {
				file := filepath.Join(tt.o.HostRoot, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			root, _, file, err := find(tt.o)
			if (err == nil) != (tt.root != "") || err == nil && (root != tt.root || !strings.HasPrefix(file, tt.o.HostRoot+root)) {
				t.Errorf("root %q with %q, %v, want %q", root, file, err, tt.root)
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
