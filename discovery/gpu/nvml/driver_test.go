//go:build cgo && linux

package nvml_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
	"github.com/heddle-dev/heddle/test/nvidia"
)

const before, after = "535.161.08", "550.54.15"

// dgx is a driver of a machine with eight GPUs on NVSwitches.
func dgx(t *testing.T, version string) (*nvidia.Driver, nvidia.Control) {
	t.Helper()
	d, err := nvidia.Install(t.Context(), t.TempDir(), "usr/lib/"+nvidia.Triple(), version)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile("../../../test/machines/dgx-h100.json")
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.Decode(file)
	if err != nil {
		t.Fatal(err)
	}
	c := nvidia.Of(m)
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
	if holders, err := d.Holders(); err != nil || len(holders) > 0 {
		t.Errorf("holders of the driver after the session: %v, %v", holders, err)
	}
	// The kernel side is upgraded; the process has the old library for ever.
	c.Kernel = after
	if err := d.Set(c); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Open(); err == nil || !strings.Contains(err.Error(), "mismatch") {
		t.Errorf("upgraded driver: %v", err)
	}
}
