//go:build e2e && linux

package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/test/cluster/image"
)

const libraryName = "localhost/vgpu:test"

// libraryImage loads an image that has a shared library and no program, and returns the
// library.
func libraryImage(t *testing.T, b *bed) []byte {
	t.Helper()
	dir := t.TempDir()
	library, archive := filepath.Join(dir, "libvgpu.so"), filepath.Join(dir, "vgpu.tar")
	cmd := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-o", library, "-x", "c", "-")
	cmd.Stdin = strings.NewReader("int heddle_test_library;")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	err := image.Pack(t.Context(), archive, image.Spec{Name: libraryName, Files: map[string]string{"/libvgpu.so": library}})
	if err = errors.Join(err, b.LoadImage(t.Context(), archive)); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// stepLibrary looks into the container of the pod with a share.
func stepLibrary(t *testing.T, b *removable) {
	id := strings.TrimPrefix(b.kubectl(t, "get", "pod", sharer, "-o", "jsonpath={.status.containerStatuses[0].containerID}"), "containerd://")
	root := "/run/containerd/io.containerd.runtime.v2.task/k8s.io/" + id
	mounts, err := b.NodeExec(t.Context(), "busybox", "cat", root+"/config.json")
	if err != nil || !strings.Contains(mounts, "/etc/ld.so.preload") || !strings.Contains(mounts, "CUDA_DEVICE_MEMORY_LIMIT_0=8") {
		t.Errorf("error %v: no library or no limit in the container:\n%s", err, mounts)
	}
	got, err := b.NodeExec(t.Context(), "busybox", "sh", "-c", "cat /var/lib/heddle/device-plugin/preload/lib/*.so")
	if err != nil || !bytes.Equal([]byte(got), b.library) {
		t.Errorf("error %v: the library that containers have has %d bytes, the image's %d", err, len(got), len(b.library))
	}
}
