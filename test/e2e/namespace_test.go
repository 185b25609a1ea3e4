//go:build e2e && linux

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/heddle-dev/heddle/test/sysfstest"
)

// TestWholeBinaryOnAFixtureTree runs the heddle command in a user namespace
// whose root is a DGX H100's /sys, /dev and /proc: real default paths, eight
// InfiniBand mlx5 and one for storage, no privileges.
func TestWholeBinaryOnAFixtureTree(t *testing.T) {
	root := t.TempDir()
	tree := sysfstest.At(t, root)
	sysfstest.DGXH100(tree)
	// A static binary needs nothing in its root. With cgo it has the packages of all other programs, which are compiled.
	build := exec.CommandContext(t.Context(), "go", "build",
		"-ldflags", "-linkmode=external -extldflags=-static", "-o", filepath.Join(root, "heddle"), "./cmd/heddle")
	build.Dir, build.Env = shared.installer.Root, append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	heddle := func(args ...string) string {
		cmd := exec.CommandContext(t.Context(), "/heddle", args...)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Chroot:      root,
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("heddle %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	matrix := heddle("inspect", "-o", "matrix")
	for _, hca := range []string{"mlx5_0", "mlx5_7"} {
		if !strings.Contains(matrix, hca) {
			t.Errorf("no %s in\n%s", hca, matrix)
		}
	}
	labels := heddle("inspect", "-o", "labels", "--node-name", "dgx042")
	for _, want := range []string{"heddle.dev/rdma.hca.count=8", "heddle.dev/rdma.hca.link-layer=InfiniBand", "heddle.dev/rdma.hca.rate=400"} {
		if !strings.Contains(labels, want+"\n") {
			t.Errorf("no %s in\n%s", want, labels)
		}
	}
}
