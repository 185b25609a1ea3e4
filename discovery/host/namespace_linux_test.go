package host

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// inNamespace names the tree that this process, started by
// TestRealPathsInAUserNamespace, shall mount.
const inNamespace = "HEDDLE_TEST_TREE"

// notPermitted is the exit code of a child that may not mount.
const notPermitted = 77

func TestMain(m *testing.M) {
	if root := os.Getenv(inNamespace); root != "" {
		os.Exit(scanRealPaths(root)) //nolint:forbidigo // This is the child's main.
	}
	m.Run()
}

// scanRealPaths puts a tree's sys and dev over /sys and /dev and prints what a
// scan with no options at all finds.
func scanRealPaths(root string) int {
	for _, dir := range []string{"sys", "dev"} {
		if err := syscall.Mount(filepath.Join(root, dir), "/"+dir, "", syscall.MS_BIND|syscall.MS_REC, ""); err != nil {
			_, _ = io.WriteString(os.Stderr, "mount "+dir+": "+err.Error())
			return notPermitted
		}
	}
	h := New(Options{GPUs: from(&gpus{count: 8})})
	b, err := machine.Encode(h.Scan(context.Background()))
	if err != nil {
		return 1
	}
	_, err = os.Stdout.Write(b)
	if err != nil {
		return 1
	}
	return 0
}

// The same binary on the real paths, /sys and /dev, with eight mlx5 and a
// ninth.
func TestRealPathsInAUserNamespace(t *testing.T) {
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	tree.Remove("dev/infiniband/uverbs3")
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	code, complaint := startInNamespace(t, tree.Root, out)
	switch {
	case code == notPermitted:
		t.Skip("user namespaces do not permit this here: " + complaint)
	case code != 0:
		t.Fatalf("exit code %d: %s", code, complaint)
	}
	b, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(roles(0, 8, "mlx5_8"), rolesOf(m)); diff != "" {
		t.Errorf("roles (-want +got):\n%s", diff)
	}
	want := []machine.Skipped{
		{Name: "mlx5_3/uverbs3", Reason: "/dev/infiniband/uverbs3 is not there"},
	}
	if diff := cmp.Diff(want, m.Skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	if len(m.GPUs) != 8 || !m.RDMA.RDMACM {
		t.Errorf("%d GPUs, rdma_cm %t", len(m.GPUs), m.RDMA.RDMACM)
	}
}

// startInNamespace runs this test binary as root of a user namespace of its
// own, and returns its exit code and what it wrote to stderr.
func startInNamespace(t *testing.T, root string, out *os.File) (code int, complaint string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := os.StartProcess(self, []string{self}, &os.ProcAttr{
		Env: append(os.Environ(), inNamespace+"="+root), Files: []*os.File{nil, out, w},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		},
	})
	w.Close()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
		return notPermitted, err.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(io.LimitReader(r, 1<<16))
	if err != nil {
		t.Fatal(err)
	}
	state, err := p.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return state.ExitCode(), strings.TrimSpace(string(text))
}
