//go:build e2e && linux

package vm_test

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/test/vm"
)

// TestRDMAInGuest boots a guest on the tests of package rdma.
func TestRDMAInGuest(t *testing.T) {
	cache, err := vm.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	g, err := vm.Prepare(t.Context(), cache, t.Output())
	if missing, ok := errors.AsType[*vm.MissingError](err); ok {
		t.Skip(missing)
	}
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "init")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "vmguest", "-ldflags", "-s -w", "-o", binary, "./rdma")
	build.Env = append(build.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the guest's init: %v\n%s", err, out)
	}
	output, err := g.Run(t.Context(), binary, "-test.timeout=90s")
	t.Logf("%s:\n%s", g.Version, output)
	if err != nil || !strings.Contains(output, "--- PASS: ") {
		t.Errorf("the guest's tests: %v", err)
	}
}
