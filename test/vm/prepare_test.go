//go:build linux && amd64

package vm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeArchive is a distribution whose kernel package has three modules; every
// use of apt-get adds a line to the file that it returns.
func fakeArchive(t *testing.T) (log string) {
	t.Helper()
	dir := t.TempDir()
	kernel := "\x7fELF kernel"
	deb := tarOf(t, map[string]string{
		"./boot/vmlinuz-6.1.0-9-amd64":             string(bzImage(pack(t, []byte(kernel), "xz", "-c"), len(kernel))),
		"./lib/modules/6/kernel/a/rdma_rxe.ko":     string(module("depends=ib_core\x00")),
		"./lib/modules/6/kernel/b/ib_core.ko":      string(module("depends=irq-new\x00")),
		"./lib/modules/6/kernel/b/irq-new.ko":      string(module("depends=\x00")),
		"./lib/modules/6/kernel/b/not_for_us.ko.x": "?",
	})
	if err := os.WriteFile(filepath.Join(dir, "tar"), deb, 0o644); err != nil {
		t.Fatal(err)
	}
	log = filepath.Join(dir, "log")
	fake(t, "apt-cache", `echo "Depends: linux-image-6.1.0-9-amd64 (= 1:6.1.99-1)"`)
	fake(t, "apt-get", `echo fetched >> `+log+`; touch kernel.deb`)
	fake(t, "dpkg-deb", "cat "+filepath.Join(dir, "tar"))
	fakeQEMU(t, "exit 33")
	return log
}

func TestPrepareFetchesAKernelOnce(t *testing.T) {
	log := fakeArchive(t)
	cache := filepath.Join(t.TempDir(), "deep", "cache")
	dir := filepath.Join(cache, "linux-image-6.1.0-9-amd64_1%6.1.99-1")
	want := &Guest{
		Version: filepath.Base(dir), Kernel: filepath.Join(dir, "vmlinux"),
		Modules: []string{
			filepath.Join(dir, "modules/00_irq_new.ko"), filepath.Join(dir, "modules/01_ib_core.ko"),
			filepath.Join(dir, "modules/02_rdma_rxe.ko"),
		},
	}
	for _, when := range []string{"first", "second"} {
		got, err := Prepare(t.Context(), cache, t.Output())
		if err != nil {
			t.Fatalf("%s time: %v", when, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s time (-want +got):\n%s", when, diff)
		}
	}
	if lines, err := os.ReadFile(log); err != nil || strings.Count(string(lines), "fetched") != 1 {
		t.Errorf("apt-get ran other than once: %q, %v", lines, err)
	}
	if left, err := filepath.Glob(filepath.Join(cache, "new-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	fake(t, "apt-cache", "exit 100")
	fake(t, "apt-get", "echo no network >&2; exit 100")
	if got, err := Prepare(t.Context(), cache, t.Output()); err != nil || !cmp.Equal(got, want) {
		t.Errorf("without a network the cache's kernel does: %+v, %v", got, err)
	}
	_, err := Prepare(t.Context(), t.TempDir(), t.Output())
	if missing, ok := errors.AsType[*MissingError](err); !ok || !strings.Contains(missing.Error(), "no network") {
		t.Errorf("without a network and a cache: %v", err)
	}
}

func TestPrepareLeavesNothingHalfDone(t *testing.T) {
	fakeArchive(t)
	fake(t, "dpkg-deb", "echo cut off; exit 2")
	cache := t.TempDir()
	if _, err := Prepare(t.Context(), cache, t.Output()); err == nil || !strings.Contains(err.Error(), "unpack kernel.deb") {
		t.Errorf("a broken package: %v", err)
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestCacheDirFollowsTheUser(t *testing.T) {
	t.Setenv("HEDDLE_CACHE", "/big/disk")
	if dir, err := CacheDir(); err != nil || dir != "/big/disk/vm" {
		t.Errorf("%q, %v", dir, err)
	}
	t.Setenv("HEDDLE_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "/home/u/.cache")
	if dir, err := CacheDir(); err != nil || dir != "/home/u/.cache/heddle/vm" {
		t.Errorf("%q, %v", dir, err)
	}
}
