//go:build e2e && linux

package vm_test

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/heddle-dev/heddle/test/vm"
)

func TestRDMAInGuest(t *testing.T) {
	runInGuest(t, "./rdma", vm.Spec{NICs: 3})
}

// runInGuest boots a guest on the tests of a package and repeats their fates.
func runInGuest(t *testing.T, pkg string, spec vm.Spec) {
	t.Helper()
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
	spec.TestBinary = filepath.Join(t.TempDir(), "init")
	spec.Args = append(spec.Args, "-test.timeout=90s")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "vmguest", "-ldflags", "-s -w",
		"-o", spec.TestBinary, pkg)
	build.Env = append(build.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the guest's init: %v\n%s", err, out)
	}
	result, err := g.Run(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s in %s, %s:\n%s", g.Version, result.Took.Round(1e8), result.Outcome, result.Output)
	if result.Outcome != vm.Passed || len(result.Tests) == 0 {
		t.Errorf("the guest %s, with %d tests", result.Outcome, len(result.Tests))
	}
	for _, test := range result.Tests {
		t.Run(test.Name, func(t *testing.T) {
			if test.Outcome != "PASS" {
				t.Error(test.Outcome, "in the guest")
			}
		})
	}
}
