package deviceplugin

import (
	"bytes"
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestCleanup: of all that is in the directories heddle's goes and nothing else, and
// the daemon is ready then.
func TestCleanup(t *testing.T) {
	root := t.TempDir()
	for _, file := range []string{
		"cdi/heddle-gpu-0123456789ab-0123456789abcdef.json", "cdi/driver.heddle.dev-gpu.json", "cdi/nvidia.yaml",
		"cdi/heddle-other.json", "kubelet/device-plugins/kubelet_internal_checkpoint",
		"kubelet/device-plugins/heddle-nvidia.com_gpu-000000-aaaaaaaa.sock", "kubelet/device-plugins/other.sock",
		"lib/heddle/device-plugin/records/0123456789ab-0123456789abcdef.json", "lib/other/file", "shm/heddle-mps/log",
	} {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- run(ctx, []string{
			"--cleanup", "--node-name=gpu-1", "--cdi-dir=" + root + "/cdi", "--kubelet-dir=" + root + "/kubelet",
			"--state-dir=" + root + "/lib/heddle/device-plugin", "--mps-shm-dir=" + root + "/shm/heddle-mps",
			"--metrics-address=" + address,
		}, &bytes.Buffer{}, &bytes.Buffer{})
	}()
	for get("http://"+address+"/readyz") != "ok\n" {
		if ctx.Err() != nil {
			t.Fatal("it is not ready: ", get("http://"+address+"/readyz"))
		}
	}
	want := []string{
		"cdi/heddle-other.json", "cdi/nvidia.yaml", "kubelet/device-plugins/kubelet_internal_checkpoint",
		"kubelet/device-plugins/other.sock", "lib/other/file",
	}
	var left []string
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(root, path); err == nil && (!entry.IsDir() || entry.Name() == "heddle") {
			left = append(left, rel)
		}
		return err
	})
	if diff := cmp.Diff(want, left); diff != "" || err != nil {
		t.Errorf("files left (-want +got), %v:\n%s", err, diff)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
