//go:build cgo && linux

package nvidia_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/test/nvidia"
)

const before, after = "535.161.08", "550.54.15"

// dgx is a driver of a machine with eight GPUs on NVSwitches. A process keeps
// the first library that it loads, so the driver is always at the same place.
func dgx(t *testing.T, version string) (*nvidia.Driver, nvidia.Control) {
	t.Helper()
	root := filepath.Join(os.TempDir(), "heddle-nvml-"+strconv.Itoa(os.Getpid()))
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	d, err := nvidia.Install(t.Context(), root, "usr/lib/"+nvidia.Triple(), version)
	if err != nil {
		t.Fatal(err)
	}
	c := nvidia.Of(machines.Load(t, "dgx-h100"))
	c.Kernel = version
	return d, c
}

func TestRealLibrary(t *testing.T) {
	d, c := dgx(t, before)
	if err := d.Set(c); err != nil {
		t.Fatal(err)
	}
	l := nvml.New(gpu.Options{DriverRoot: d.Root})
	driver, n, err := l.Open()
	if err != nil || n != 8 || driver.Version != before {
		t.Fatalf("driver %+v, %d GPUs, %v", driver, n, err)
	}
	g, err := l.GPU(3)
	if err != nil || g.UUID != c.GPUs[3].UUID || g.NVLinks[0].Links != 18 {
		t.Errorf("GPU 3: %+v, %v", g, err)
	}
	holders, err := d.Holders()
	if err != nil || !slices.Contains(holders, os.Getpid()) {
		t.Errorf("holders of the driver: %v, %v", holders, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if n, err := d.Sessions(); err != nil || n != 1 {
		t.Errorf("%d sessions, %v, want one", n, err)
	}
	if holders, err := d.Holders(); err != nil || len(holders) > 0 {
		t.Errorf("holders of the driver after the session: %v, %v", holders, err)
	}
	// The packages of a new driver replace the library. The kernel still has the
	// old module, and would go on answering: new programs would not run.
	if _, _, err := l.Open(); err != nil {
		t.Fatal(err)
	}
	if d, err = nvidia.Install(t.Context(), d.Root, "usr/lib/"+nvidia.Triple(), after); err != nil {
		t.Fatal(err)
	}
	if err := d.Set(c); err != nil {
		t.Fatal(err)
	}
	_, _, err = l.Open()
	if !errors.Is(err, gpu.ErrRestart) || !strings.Contains(err.Error(), "the driver was upgraded: this process has the library of "+before) {
		t.Errorf("another library is installed: %v, want gpu.ErrRestart", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	// A process that starts now has the new library and waits for its module. It
	// is the same process here, so the old library plays the new one.
	c.Kernel = after
	if err := d.Set(c); err != nil {
		t.Fatal(err)
	}
	_, _, err = nvml.New(gpu.Options{DriverRoot: d.Root}).Open()
	if err == nil || errors.Is(err, gpu.ErrRestart) || !strings.Contains(err.Error(), "load the kernel module of the library's version") {
		t.Errorf("the module is of another version: %v", err)
	}
}

// TestLibraryElsewhere: what is found first is no library, as in the middle of an upgrade, and the
// library comes into another directory.
func TestLibraryElsewhere(t *testing.T) {
	d, c := dgx(t, before)
	if err := d.Set(c); err != nil {
		t.Fatal(err)
	}
	first := nvml.New(gpu.Options{DriverRoot: d.Root}) // Its functions are those that the process calls from now on.
	if _, _, err := first.Open(); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	none, library := filepath.Join(root, "usr/lib64/libnvidia-ml.so.1"), filepath.Join(root, "lib64/libnvidia-ml.so.1")
	for _, path := range []string{none, library} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(none, []byte("no ELF"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := nvml.New(gpu.Options{DriverRoot: root})
	if _, _, err := l.Open(); err == nil {
		t.Error("a file that is no library opens")
	}
	installed, err := filepath.EvalSymlinks(filepath.Join(d.Root, "usr/lib", nvidia.Triple(), "libnvidia-ml.so.1"))
	if err == nil {
		err = errors.Join(os.Remove(none), os.Link(installed, library))
	}
	if err != nil {
		t.Fatal(err)
	}
	if driver, n, err := l.Open(); err != nil || n != 8 || driver.Version != before {
		t.Errorf("driver %+v, %d GPUs, %v", driver, n, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
