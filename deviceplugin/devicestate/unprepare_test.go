package devicestate

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// left counts the files that we have on a node.
func (r *rig) left() int {
	n := 0
	for _, dir := range []string{r.options.CDIDir, filepath.Join(r.options.StateDir, "records"), filepath.Join(r.options.StateDir, "devices")} {
		entries, _ := os.ReadDir(dir)
		n += len(entries)
	}
	return n
}

func (r *rig) collect() {
	r.tb.Helper()
	if err := r.Unprepare(r.tb.Context()); err != nil {
		r.tb.Fatal(err)
	}
}

func TestCollect(t *testing.T) {
	r := newRig(t)
	r.specs.unknown = true // Without an API server the kubelet's checkpoint decides.
	gone := asks{gpus: r.gpuIDs(1), hcas: r.deviceIDs("mlx5_3")}
	goneNames := r.allocate(pod("gone"), "main", gone)
	r.start(gone)
	stays := asks{gpus: r.gpuIDs(2), hcas: r.deviceIDs("mlx5_4")}
	staysNames := r.allocate(pod("stays"), "main", stays)
	r.start(stays)
	if _, err := r.Allocate(hcas, r.deviceIDs("mlx5_5")); err != nil { // No pod will come for it.
		t.Fatal(err)
	}
	for _, f := range []string{"nvidia.json", "heddle-nvidia.json", "heddle-gpu-x.json"} {
		if err := os.WriteFile(filepath.Join(r.options.CDIDir, f), []byte(`{}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cut := filepath.Join(r.options.CDIDir, ".heddle-1.tmp")
	if err := os.WriteFile(cut, []byte(`{`), 0o600); err != nil {
		t.Fatal(err)
	}
	const all = 2*6 + 1 + 3 + 1
	if n := r.left(); n != all {
		t.Fatalf("%d files, want %d", n, all)
	}
	r.collect()
	r.kubelet.Delete("default", "gone")
	r.collect()
	r.pass(goneFor)
	r.collect()
	if n := r.left(); n != all {
		t.Errorf("the checkpoint still names the pod, and %d files of %d are left", n, all)
	}
	if len(r.View().Allocations()) != 2 {
		t.Errorf("bindings: %+v", r.View().Allocations())
	}
	// The next allocation rewrites the checkpoint, and may take the same devices.
	next := asks{hcas: r.deviceIDs("mlx5_3")}
	nextNames := r.allocate(pod("next"), "main", next)
	r.start(next)
	r.pass(unclaimedFor + time.Second)
	r.collect()
	r.pass(goneFor)
	r.collect()
	if n := r.left(); n != 6+3+3 {
		t.Errorf("%d files are left, want those of two pods and three that are not heddle's", n)
	}
	if _, err := os.Stat(cut); err == nil {
		t.Error("a temporary file is left")
	}
	for _, name := range []string{"nvidia.json", "heddle-nvidia.json", "heddle-gpu-x.json"} {
		if err := os.Remove(filepath.Join(r.options.CDIDir, name)); err != nil {
			t.Error(err)
		}
	}
	if got := r.mustEnter(staysNames); got.Devices.Pod != "stays" {
		t.Errorf("%+v", got)
	}
	if got := r.mustEnter(nextNames); got.Devices.Pod != "next" || !slices.Equal(got.given(), []string{"mlx5_3"}) {
		t.Errorf("%+v", got)
	}
	if _, err := r.enter(goneNames); err == nil {
		t.Error("the names of the pod that has gone lead to devices")
	}
}

// TestSpecLivesAsLongAsItsPod: between a restart of the kubelet and our
// registration the kubelet starts containers without us.
func TestSpecLivesAsLongAsItsPod(t *testing.T) {
	r := newRig(t)
	want := asks{gpus: r.gpuIDs(1), hcas: r.deviceIDs("mlx5_3")}
	names := r.allocate(pod("a"), "main", want)
	r.start(want)
	for range 3 {
		r.kubelet.Restart()
		r.restart()
		r.collect()
		r.pass(time.Hour)
		r.collect()
		if got := r.mustEnter(names); got.Devices.Pod != "a" {
			t.Errorf("%+v", got)
		}
	}
	r.specs.pods["default/a"] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid-a"}}
	// The kubelet has lost its checkpoint: it knows the pod, and no devices.
	r.kubelet.Stop()
	r.kubelet.Wipe()
	r.kubelet.Up()
	r.collect()
	if e := r.specs.takeEvents(); len(e) > 0 {
		t.Errorf("events at once: %v", e)
	}
	r.pass(time.Hour)
	r.collect()
	r.mustEnter(names)
	e := r.specs.takeEvents()
	if len(e) != 1 || !strings.HasPrefix(e[0], "default/a DevicesLost: ") {
		t.Errorf("events: %v", e)
	}
	if err := r.Prepare(t.Context(), hcas, want[hcas]); err == nil || !strings.Contains(err.Error(), "no container holds exactly") {
		t.Errorf("error %v", err)
	}
}

// TestNameOfAPodUsedAgain is a StatefulSet's: another pod of the same name has
// other devices, and nothing of the old one's.
func TestNameOfAPodUsedAgain(t *testing.T) {
	r := newRig(t)
	want := asks{hcas: r.deviceIDs("mlx5_3")}
	old := r.allocate(pod("web-0"), "main", want)
	r.start(want)
	r.kubelet.Delete("default", "web-0")
	r.collect()
	p := pod("web-0")
	p.UID = "another"
	again := asks{hcas: r.deviceIDs("mlx5_3")}
	names := r.allocate(p, "main", again)
	if _, err := r.enter(names); err == nil {
		t.Fatal("the new pod's name leads to something before its start")
	}
	r.start(again)
	r.collect()
	r.pass(goneFor)
	r.collect()
	if got := r.mustEnter(names); !slices.Equal(got.given(), []string{"mlx5_3"}) {
		t.Errorf("%+v", got)
	}
	if _, err := r.enter(old); err == nil {
		t.Error("the old pod's spec is left")
	}
	if b := r.View().Allocations(); len(b) != 1 || b[0].UID != "another" {
		t.Errorf("bindings: %+v", b)
	}
}

// TestCollectLeavesWhatIsBeingWritten: to a clock that was just set by an hour
// every file is old.
func TestCollectLeavesWhatIsBeingWritten(t *testing.T) {
	r := newRig(t)
	r.pass(time.Hour)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 200 {
				if _, err := r.Allocate(hcas, []string{fmt.Sprint(i, n)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 50 {
		r.collect()
	}
	wg.Wait()
	if p := r.Problems(); len(p) > 0 {
		t.Errorf("problems %v", p)
	}
}
