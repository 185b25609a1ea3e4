package devicestate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heddle-dev/heddle/deviceplugin/cdi"
)

// mounted puts a small tmpfs on dir, or skips.
func mounted(t *testing.T, dir string, flags uintptr) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", flags, "size=16k")
	if errors.Is(err, unix.EPERM) {
		t.Skip("nothing can be mounted here")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// TestDirectoriesThatCannotBeWritten: the container waits with the reason, and
// starts with its own devices once there is room.
func TestDirectoriesThatCannotBeWritten(t *testing.T) {
	full := func(t *testing.T, dir string) {
		t.Helper()
		mounted(t, dir, 0)
		if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 16<<10), 0o600); err == nil {
			_ = os.WriteFile(filepath.Join(dir, "full2"), make([]byte, 4<<10), 0o600)
		}
	}
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, r *rig)
		want  string
		fault string
	}{
		{"CDI directory read-only", func(t *testing.T, r *rig) {
			t.Helper()
			mounted(t, r.options.CDIDir, unix.MS_RDONLY)
		}, "read-only file system", problemCDI},
		{"CDI directory full", func(t *testing.T, r *rig) { t.Helper(); full(t, r.options.CDIDir) }, "no space left", problemCDI},
		{"CDI directory is a file", func(t *testing.T, r *rig) {
			t.Helper()
			if err := os.WriteFile(r.options.CDIDir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not a directory", problemCDI},
		{"state full", func(t *testing.T, r *rig) {
			t.Helper()
			full(t, filepath.Join(r.options.StateDir, "devices"))
		}, "no space left", problemState},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			tt.spoil(t, r)
			want := asks{gpus: r.gpuIDs(1), hcas: r.deviceIDs("mlx5_9")}
			names := r.allocate(pod("a"), "main", want)
			err := r.Prepare(t.Context(), hcas, want[hcas])
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want %q in it", err, tt.want)
			}
			if p := r.Problems(); len(p) != 1 || p[0].Name != tt.fault || !strings.Contains(p[0].Reason, tt.want) {
				t.Errorf("problems: %v", p)
			}
			for _, dir := range []string{r.options.CDIDir, filepath.Join(r.options.StateDir, "devices")} {
				_ = unix.Unmount(dir, unix.MNT_DETACH)
			}
			if info, err := os.Stat(r.options.CDIDir); err == nil && !info.IsDir() {
				_ = os.Remove(r.options.CDIDir)
			}
			r.start(want)
			if got := r.mustEnter(names); !slices.Equal(got.given(), []string{"mlx5_3"}) {
				t.Errorf("%+v", got)
			}
			r.collect()
			if p := r.Problems(); len(p) != 0 {
				t.Errorf("problems once there is room: %v", p)
			}
		})
	}
}

func TestAllocateThatCannotBeRecorded(t *testing.T) {
	r := newRig(t)
	if err := os.WriteFile(r.options.StateDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want := asks{hcas: r.deviceIDs("mlx5_0")}
	names := r.allocate(pod("a"), "main", want)
	if p := r.Problems(); len(p) != 1 || p[0].Name != problemState || !strings.Contains(r.Unwritable(), "not a directory") {
		t.Errorf("problems %v", p)
	}
	if err := os.Remove(r.options.StateDir); err != nil {
		t.Fatal(err)
	}
	r.start(want)
	r.mustEnter(names)
	if reason := r.Unwritable(); reason != "" || len(r.Problems()) != 0 {
		t.Errorf("problems %v once it can be written: %s", r.Problems(), reason)
	}
}

// TestCheckpointThatDoesNotHelp: without it the entries have the names, and
// PodResources has their owners; ordinary init containers wait.
func TestCheckpointThatDoesNotHelp(t *testing.T) {
	for _, tt := range []struct {
		name, content string
		problem       bool
	}{
		{"corrupt", `{"Data":{"PodDeviceEntries":[{`, true},
		{"of another format", `{"Data":{"PodDeviceEntries":"?"}}`, true},
		{"empty", `{}`, false},
		{"without names", `{"Data":{"PodDeviceEntries":[{"PodUID":"","ContainerName":"main"}]}}`, false},
		{"absent", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.kubeletDir = t.TempDir()
			if tt.content != "" {
				r.writeCheckpoint(tt.content)
			}
			r.restart()
			stale, err := r.Allocate(hcas, r.deviceIDs("mlx5_9"))
			if err != nil {
				t.Fatal(err)
			}
			want := asks{gpus: r.gpuIDs(1), hcas: r.deviceIDs("mlx5_9")}
			names := r.allocate(pod("a"), "main", want)
			r.start(want)
			first := r.mustEnter(names)
			if !slices.Equal(first.given(), []string{"mlx5_3"}) {
				t.Errorf("%+v", first)
			}
			if got := len(r.Problems()) > 0; got != tt.problem {
				t.Errorf("problems: %v", r.Problems())
			}
			// The lost name of the same IDs is no other pod's either.
			if s, err := r.enter(map[string]string{hcas: stale}); err == nil && s.Devices.Pod != "a" {
				t.Errorf("a lost name leads to %+v", s)
			}
			r.pass(time.Hour)
			for range 2 {
				if err := r.Unprepare(t.Context()); (err != nil) != tt.problem {
					t.Errorf("collect: %v", err)
				}
				r.pass(time.Hour)
			}
			r.mustEnter(names)
			if err := r.Prepare(t.Context(), hcas, r.deviceIDs("mlx5_4")); err == nil || tt.problem && !strings.Contains(err.Error(), "checkpoint") {
				t.Errorf("devices that no container is known to hold: %v", err)
			}
		})
	}
}

// TestPodResourcesFails: a clear error in time, and nothing bound by guess.
func TestPodResourcesFails(t *testing.T) {
	r := newRig(t)
	want := asks{hcas: r.deviceIDs("mlx5_0")}
	names := r.allocate(pod("a"), "main", want)
	broken := errors.New("broken")
	r.kubelet.Disturb(func(context.Context, string) error { return broken })
	if err := r.Prepare(t.Context(), hcas, want[hcas]); err == nil || !strings.Contains(err.Error(), "PodResources") {
		t.Errorf("broken: %v", err)
	}
	if p := r.Problems(); len(p) != 1 || p[0].Name != problemPodResources {
		t.Errorf("problems: %v", p)
	}
	hang := make(chan struct{})
	r.kubelet.Disturb(func(context.Context, string) error { <-hang; return nil })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := r.Prepare(ctx, hcas, want[hcas])
	// The server learns of the deadline too, and its answer may be the first.
	if !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(fmt.Sprint(err), "code = DeadlineExceeded") {
		t.Errorf("slow: %v", err)
	}
	close(hang)
	r.kubelet.Disturb(nil)
	r.kubelet.Stop()
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.Prepare(ctx, hcas, want[hcas]); err == nil {
		t.Error("bound without a kubelet")
	}
	if _, err := r.enter(names); err == nil {
		t.Error("there is a spec")
	}
	r.kubelet.Up()
	r.start(want)
	if got := r.mustEnter(names); !slices.Equal(got.given(), []string{"mlx5_0"}) || len(r.Problems()) != 0 {
		t.Errorf("%+v, problems %v", got, r.Problems())
	}
}

func TestDevicesThatNoContainerHolds(t *testing.T) {
	r := newRig(t)
	held := asks{hcas: r.deviceIDs("mlx5_0", "mlx5_3")}
	r.allocate(pod("a"), "main", held)
	for name, ids := range map[string][]string{
		"of no container": r.deviceIDs("mlx5_9"), "a part of a container's": r.deviceIDs("mlx5_0"),
		"more than a container's": r.deviceIDs("mlx5_0", "mlx5_3", "mlx5_4"), "none": nil, "nonsense": {"\x00", "../../x"},
	} {
		if err := r.Prepare(t.Context(), hcas, ids); err == nil || !strings.Contains(err.Error(), "no container holds exactly") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if err := r.Prepare(t.Context(), "example.com/x", held[hcas]); err == nil || !strings.Contains(err.Error(), "unknown resource example.com/x") {
		t.Errorf("another resource: %v", err)
	}
	if n := r.left(); n != 1 {
		t.Errorf("%d files, want the one record", n)
	}
}

// TestNamesOfOthersAreNotTaken: the checkpoint is the kubelet's word, and still
// no path into the file system, and no name for other devices.
func TestNamesOfOthersAreNotTaken(t *testing.T) {
	r := newRig(t)
	ids := r.deviceIDs("mlx5_0")
	digest := func(ids []string) string {
		device, _, _ := strings.Cut(cdi.NewName(cdi.RDMA, hcas, ids).Device, "-")
		return device
	}
	wrong := "heddle.dev/rdma=" + digest(r.deviceIDs("mlx5_3")) + "-0123456789abcdef"
	r.assign(pod("a"), "main", hcas, ids, wrong)
	if err := r.Prepare(t.Context(), hcas, ids); err == nil || !strings.Contains(err.Error(), "was not made for") {
		t.Errorf("a name for other IDs: %v", err)
	}
	for _, name := range []string{
		"heddle.dev/rdma=../../etc/passwd", "heddle.dev/rdma=" + digest(ids) + "-../../x", "nvidia.com/gpu=all",
		"heddle.dev/x=" + digest(ids) + "-0123456789abcdef", "",
	} {
		r.assign(pod("a"), "main", hcas, ids, name)
		if err := r.Prepare(t.Context(), hcas, ids); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	if n := r.left(); n != 0 {
		t.Errorf("%d files", n)
	}
}
