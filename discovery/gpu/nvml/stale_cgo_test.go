//go:build cgo && linux

package nvml

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// A library below a driver root comes into view when it is installed, the right to open device nodes
// does not: a container that was created before the driver gets it from the next one. One that the
// configuration gives no right goes on, since the plugin serves HCAs too.
func TestDriverRootThatCameAfterTheContainer(t *testing.T) {
	denied := errors.New("denied")
	for _, tt := range []struct {
		name            string
		before, reached bool
		want            bool
	}{
		{"the driver was there", true, false, false},
		{"the driver came later", false, false, true},
		{"the driver answered once", false, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := gpu.Options{SysfsRoot: t.TempDir(), DriverRoot: "/driver-root"}
			link := filepath.Join(o.SysfsRoot, "bus/pci/drivers/nvidia/0000:1b:00.0")
			var f loaded
			if tt.before {
				if err := os.MkdirAll(link, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			f.look(o)
			if err := os.MkdirAll(link, 0o755); err != nil {
				t.Fatal(err)
			}
			f.look(o)
			if tt.reached {
				f.reached()
			}
			if err := f.absent(o, denied); errors.Is(err, gpu.ErrRestart) || !errors.Is(err, denied) {
				t.Errorf("at once: %v", err)
			}
			f.missed = f.missed.Add(-2 * gpu.DriverPatience)
			if err := f.absent(o, denied); errors.Is(err, gpu.ErrRestart) != tt.want || !errors.Is(err, denied) {
				t.Errorf("after %s: %v, want gpu.ErrRestart %t", gpu.DriverPatience, err, tt.want)
			}
		})
	}
}

// TestLoadedBelowARoot: the next driver has its libraries in another directory, and absolute links as
// Debian's packages make them, which lead to a file of this machine if they are not followed within
// the root.
func TestLoadedBelowARoot(t *testing.T) {
	root := t.TempDir()
	put := func(dir, text string) string {
		t.Helper()
		file := filepath.Join(root, dir, libraryName)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	name := filepath.Join(root, "usr/lib64", libraryName)
	first := put("opt/535", "535")
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.Symlink("/opt/535/"+libraryName, name)); err != nil {
		t.Fatal(err)
	}
	if got, file, err := libraryIn(root); got != name || file != first || err != nil {
		t.Fatalf("the library is %q, %q, %v", got, file, err)
	}
	var f loaded
	f.note(first)
	if err := f.stale(gpu.Options{DriverRoot: root}); err != nil {
		t.Errorf("the same file: %v", err)
	}
	if err := os.Remove(first); err != nil {
		t.Fatal(err)
	}
	if err := f.stale(gpu.Options{DriverRoot: root}); err != nil {
		t.Errorf("between two files: %v", err)
	}
	put("usr/lib", "550.54")
	if err := f.stale(gpu.Options{DriverRoot: root}); !errors.Is(err, gpu.ErrRestart) {
		t.Errorf("in another directory: %v, want gpu.ErrRestart", err)
	}
}
