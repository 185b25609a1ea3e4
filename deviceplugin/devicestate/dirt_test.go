package devicestate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
	testkubelet "github.com/heddle-dev/heddle/test/kubelet"
)

// occupied is a driver with the same on every GPU. Each question takes a time on the rig's clock.
type occupied struct {
	rig  *rig
	took time.Duration

	mu  sync.Mutex
	on  gpu.Occupancy
	err error
	// left is how many questions later the GPUs are clean; 0 is never.
	left int
}

func (o *occupied) Open() (machine.Driver, int, error) { return machine.Driver{}, 0, gpu.ErrAbsent }
func (o *occupied) GPU(int) (machine.GPU, error)       { return machine.GPU{}, gpu.ErrAbsent }
func (o *occupied) Close() error                       { return nil }
func (o *occupied) Occupancy(string) (gpu.Occupancy, error) {
	o.rig.pass(o.took)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left--; o.left == 0 {
		o.on = gpu.Occupancy{}
	}
	return o.on, o.err
}

func (o *occupied) set(left int, used int64, processes ...gpu.Process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.on, o.err, o.left = gpu.Occupancy{Processes: processes, Used: used, Idle: 256 << 20}, nil, left
}

// occupy gives the rig's GPUs a driver, and the rig a procfs of the host.
func (r *rig) occupy() *occupied {
	r.tb.Helper()
	o := &occupied{rig: r, took: time.Second}
	r.options.GPUs = gpu.Sources{{Vendor: nvml.Vendor(), Library: o}}
	r.options.Processes = cgroup.Proc{Root: r.tb.TempDir()}
	r.write("self/ns/pid", "")
	if err := os.Remove(filepath.Join(r.options.Processes.Root, "self/ns/pid")); err != nil {
		r.tb.Fatal(err)
	}
	if err := os.Symlink("pid:[4026531836]", filepath.Join(r.options.Processes.Root, "self/ns/pid")); err != nil {
		r.tb.Fatal(err)
	}
	r.restart()
	return o
}

// write writes a file of procfs.
func (r *rig) write(name, text string) {
	r.tb.Helper()
	path := filepath.Join(r.options.Processes.Root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		r.tb.Fatal(err)
	}
}

// process makes a process in a pod, with files open.
func (r *rig) process(pid int, uid string, open ...string) {
	r.tb.Helper()
	dir := strconv.Itoa(pid)
	r.write(dir+"/cgroup", "0::/kubepods/pod"+uid+"/"+strings.Repeat("0d", 32)+"\n")
	r.write(dir+"/comm", "python\n")
	for i, path := range append([]string{"/dev/null"}, open...) {
		r.write(dir+"/fd/x", "")
		if err := os.Symlink(path, filepath.Join(r.options.Processes.Root, dir, "fd", strconv.Itoa(i))); err != nil {
			r.tb.Fatal(err)
		}
	}
}

const formerUID = "00000000-0000-4000-8000-00000000000a"

// TestDirtyGPU: a container waits for a GPU with a process of another pod while that may be dying, then fails at once
// and with the reason, and starts when the GPU is clean. What is on the GPU from then on is its own.
func TestDirtyGPU(t *testing.T) {
	r := newRig(t)
	o := r.occupy()
	r.process(4711, formerUID)
	p := pod("next", testkubelet.Container{Name: "app"})
	r.specs.pods["default/next"] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "next", UID: "uid-next"}}
	want := asks{gpus: r.gpuIDs(0)}
	names := r.allocate(p, "app", want)
	// The process was killed, and its memory comes back.
	o.set(3, 2<<30, gpu.Process{PID: 4711, Bytes: 2 << 30})
	r.start(want)
	r.specs.takeEvents()
	if err := os.RemoveAll(r.options.CDIDir); err != nil {
		t.Fatal(err)
	}

	o.set(0, 2<<30, gpu.Process{PID: 4711, Bytes: 2 << 30})
	reason := fmt.Sprintf("GPU %s still has process 4711 (python) of pod %s with 2048 MiB on it, since ", r.gpuIDs(0)[0], formerUID)
	for range 2 { // The second call does not wait.
		err := r.Prepare(t.Context(), gpus, r.gpuIDs(0))
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Fatalf("%v, want %q in it", err, reason)
		}
		o.took = time.Hour
	}
	if _, err := r.enter(names); err == nil {
		t.Error("the container that waits has its devices")
	}
	if events := r.specs.takeEvents(); len(events) != 1 || !strings.HasPrefix(events[0], "default/next GPUDirty: "+reason) {
		t.Errorf("Events %q", events)
	}
	if all := r.Rejections(); len(all) != 1 || all[0].Kind != allocate.RejectedDirty || !strings.HasPrefix(all[0].Reason, reason) {
		t.Errorf("rejections %+v", all)
	}
	if all := r.Dirty(2 * time.Hour); len(all) != 0 {
		t.Errorf("dirty for two hours: %v", all)
	}
	if all := r.Dirty(time.Hour); !strings.HasPrefix(all[r.gpuIDs(0)[0]], reason) {
		t.Errorf("dirty for an hour: %v", all)
	}
	// A driver that does not answer makes no GPU clean, and none dirty.
	o.mu.Lock()
	o.err = errors.New("timeout")
	o.mu.Unlock()
	if r.LookAgain(t.Context()); len(r.Dirty(0)) != 1 {
		t.Error("a GPU is clean because its driver does not answer")
	}
	o.set(0, 0)
	if r.LookAgain(t.Context()); len(r.Dirty(0)) != 0 {
		t.Errorf("a clean GPU is dirty: %v", r.Dirty(0))
	}
	r.start(want)
	if all := r.Rejections(); len(all) != 0 {
		t.Errorf("rejections %+v", all)
	}
	o.set(0, 60<<30)
	r.start(want)
}

// TestOpenedGPU: a driver that says nothing of processes leaves those of ended pods that have the device node open.
func TestOpenedGPU(t *testing.T) {
	r := newRig(t)
	o := r.occupy()
	o.took, o.err = time.Hour, gpu.ErrAbsent
	r.alter(func(m *machine.Machine) {
		for i := range m.GPUs {
			m.GPUs[i].Minor = new(i)
		}
	})
	r.allocate(pod("next", testkubelet.Container{Name: "app"}), "app", asks{gpus: r.gpuIDs(0)})
	uuid := r.gpuIDs(0)[0]
	at := slices.IndexFunc(r.machine.GPUs, func(g machine.GPU) bool { return g.UUID == uuid })
	r.process(1, formerUID, fmt.Sprint("/dev/nvidia", at, "0"))
	if r.look(t.Context(), r.gpuIDs(0)); len(r.Dirty(0)) != 0 {
		t.Errorf("a process with another GPU is dirt: %v", r.Dirty(0))
	}
	r.process(2, formerUID, fmt.Sprint("/run/driver/dev/nvidia", at))
	if r.look(t.Context(), r.gpuIDs(0)); !strings.Contains(r.Dirty(0)[uuid], "process 2 (python) of pod "+formerUID+" with 0 MiB on it") {
		t.Errorf("dirt %v", r.Dirty(0))
	}
	if err := r.Prepare(t.Context(), gpus, r.gpuIDs(0)); err == nil {
		t.Error("the container started")
	}
	r.reconfigure(func(c *config.NodeConfig) { c.Health.Disable = []config.HealthCheck{config.CheckDirty} })
	r.start(asks{gpus: r.gpuIDs(0)})
}

// TestDirtyClaim: so does the claim of a pod wait, and leaves nothing behind.
func TestDirtyClaim(t *testing.T) {
	r := claimRig(t)
	o := r.occupy()
	o.set(0, 45<<30)
	claim := wants(r, "a", 0)
	claim.Pods = append(claim.Pods, kubelet.Pod{Namespace: "default", Name: "next", UID: "uid-next"})
	o.took = 2 * time.Second
	_, err := r.PrepareClaim(t.Context(), claim)
	reason := fmt.Sprintf("GPU %s still has 46080 MiB of no visible process on it, since ", r.machine.GPUs[0].UUID)
	if err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("%v, want %q in it", err, reason)
	}
	if files := r.claimFiles(); len(files) != 0 {
		t.Errorf("files %v", files)
	}
	if events := r.specs.takeEvents(); len(events) != 1 || !strings.HasPrefix(events[0], "default/next GPUDirty: "+reason) {
		t.Errorf("Events %q", events)
	}
	o.set(0, 0)
	if _, err := r.PrepareClaim(t.Context(), claim); err != nil {
		t.Error(err)
	}
	// The GPU has a consumer now, which may have the memory.
	o.set(0, 45<<30)
	if diff := cmp.Diff(map[string]bool{"uid-next": true}, r.usersOf(r.machine.GPUs[0].UUID)); diff != "" {
		t.Errorf("users (-want +got):\n%s", diff)
	}
	if r.look(t.Context(), []string{r.machine.GPUs[0].UUID}); len(r.Dirty(0)) != 0 {
		t.Errorf("dirt %v", r.Dirty(0))
	}
}

// BenchmarkDirt is one check of a container's GPU on a node with 500 processes of 100 pods, with 20 files open each: of
// a GPU with a process that the driver reports, and of one whose driver reports nothing, where procfs is searched.
func BenchmarkDirt(b *testing.B) {
	r := newRig(b)
	o := r.occupy()
	for pid := 1; pid <= 500; pid++ {
		uid := types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", pid%100))
		r.process(pid, string(uid), slices.Repeat([]string{"/var/lib/some/file"}, 19)...)
		r.specs.pods[string(uid)] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}
	}
	r.process(501, formerUID, "/dev/nvidia0")
	r.alter(func(m *machine.Machine) {
		for i := range m.GPUs {
			m.GPUs[i].Minor = new(i)
		}
	})
	for name, err := range map[string]error{"driver": nil, "procfs": gpu.ErrAbsent} {
		b.Run(name, func(b *testing.B) {
			o.set(0, 2<<30, gpu.Process{PID: 7, Bytes: 2 << 30})
			o.err = err
			for b.Loop() {
				r.look(b.Context(), r.gpuIDs(0))
			}
		})
	}
}
