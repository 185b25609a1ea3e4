package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/deviceplugin/report"
)

// A full state directory would be a black hole: no container of the pods that came to the node could
// start. No device is offered until there is room.
func TestStateDirectoryIsFull(t *testing.T) {
	r, c := sharer(t, "gpus: [0]")
	records := filepath.Join(r.options.StateDir, "records")
	if err := os.MkdirAll(records, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", records, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(records, unix.MNT_DETACH) })
	r.run()
	r.list(slots, 16, 0)
	r.list("nvidia.com/gpu", 7, 0)
	if err := r.consumer("a", "60/4", nil); err != nil {
		t.Fatal(err)
	}
	hog := filepath.Join(records, "hog")
	_ = os.WriteFile(hog, make([]byte, 1<<20), 0o600) // As much as there is room for.
	if _, err := r.state.Allocate("nvidia.com/gpu", []string{r.last.Load().Inventory.Machine.GPUs[1].UUID}); err != nil {
		t.Fatal(err)
	}
	r.list(slots, 0, 16)
	r.list("nvidia.com/gpu", 0, 7)
	full := func() bool {
		return slices.ContainsFunc(r.report().Problems, func(p report.Problem) bool {
			return p.Name == "space" && strings.Contains(p.Reason, "no space left on device")
		})
	}
	if !full() {
		t.Errorf("problems %v", r.report().Problems)
	}
	c.Wait(t, "the condition", func() bool {
		return len(c.conditions) > 0 && strings.Contains(c.conditions[len(c.conditions)-1].Message, "no space left on device")
	})
	// The container that runs starts again.
	if _, err := r.kubelet.StartContainer(t.Context(), "default", "a", "main"); err != nil {
		t.Errorf("a container that had its share: %v", err)
	}
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	r.list(slots, 16, 0)
	r.list("nvidia.com/gpu", 7, 0)
	if full() {
		t.Error("the problem is still reported")
	}
}
