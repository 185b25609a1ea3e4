//go:build e2e && linux

package devices

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// These tests need a machine with GPUs of NVIDIA and no other work on them: `make hardware`
// makes what such a machine needs, Go not among it.

// inside is a GPU as a container's CUDA program sees it.
type inside struct {
	UUID            string `json:"uuid"`
	MemoryMiB       int    `json:"memoryMiB"`
	Multiprocessors int    `json:"multiprocessors"`
}

func parseInside(t *testing.T, line string) (gpus []inside) {
	t.Helper()
	if err := json.Unmarshal([]byte(line), &gpus); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return gpus
}

// TestHardware: exclusive GPUs of a real driver. What heddle reads is what nvidia-smi reads; a
// container's program uses the driver's libraries and its GPU, and no other container can; an
// XID of a program changes nothing; a release leaves the driver without an open file.
func TestHardware(t *testing.T) {
	r, gpus := hardwareRig(t, "hardware", quickHealth)
	start := time.Now()
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitRegistered(t)
	t.Logf("registered %s after the start", time.Since(start))
	r.waitAllocatable(t, gpuResource, int64(len(gpus)))
	labeler := r.another(t, program(t, nodeProgram), labelerDaemon, r.hostFlags()...)
	if err := labeler.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitDriverLabel(t, gpus[0].driver)
	labels := r.node(t).Labels
	for key, want := range map[string]string{
		"nvidia.com/gpu.product": strings.ReplaceAll(gpus[0].product, " ", "-"),
		"nvidia.com/gpu.memory":  gpus[0].memoryMiB, "nvidia.com/gpu.count": strconv.Itoa(len(gpus)),
	} {
		if labels[key] != want {
			t.Errorf("label %s is %q, nvidia-smi has %q", key, labels[key], want)
		}
	}

	all := corev1.ResourceList{gpuResource: quantity(len(gpus))}
	r.create(t, r.cudaPod("first", all, "info", "alloc", "1024", "spin", "2", "wait"))
	printed := r.prints(t, "first", 3)
	seen := parseInside(t, printed[0])
	if len(seen) != len(gpus) || !slices.ContainsFunc(gpus, func(g installed) bool { return g.uuid == seen[0].UUID }) {
		t.Errorf("the container sees %v, nvidia-smi %v", seen, gpus)
	}
	if printed[1] != "alloc 1024: 0" || number(t, printed[2], "spin") <= 0 {
		t.Errorf("the program printed %q", printed)
	}
	r.closedToOthers(t)
	t.Logf("heddle doctor --node:\n%s", r.heddle(t, "doctor", "--node", r.Node()))
	r.remove(t, "first")

	before := r.codes(t)
	r.create(t, r.cudaPod("faulty", all, "fault"))
	if line := r.prints(t, "faulty", 1)[0]; line == "fault: 0" {
		t.Errorf("a write to no address: %q", line)
	}
	eventually(t, func() string {
		if now := r.codes(t); slices.Equal(now, before) {
			return "no XID is counted"
		}
		return ""
	})
	t.Logf("XIDs: %q", r.codes(t))
	if got := r.allocatable(t, gpuResource); got != int64(len(gpus)) {
		t.Errorf("after the program's fault %d GPUs are allocatable, want %d", got, len(gpus))
	}
	r.remove(t, "faulty")

	r.create(t, r.cudaPod("holder", all, "info", "wait"))
	r.prints(t, "holder", 1)
	out, code := r.heddleExit(t, "gpu", "release", r.Node(), "--for", "20m")
	if code != 1 || !strings.Contains(out, "default/holder") || !strings.Contains(out, "/dev/nvidia") {
		t.Errorf("with a pod on the GPU the release ends with %d:\n%s", code, out)
	}
	r.remove(t, "holder")
	waitClosed(t, r.plugin, labeler)
	if out, code := r.heddleExit(t, "gpu", "release", r.Node(), "--for", "20m"); code != 0 {
		t.Errorf("without the pod the release ends with %d:\n%s", code, out)
	}
	r.waitAllocatable(t, gpuResource, 0)
	r.heddle(t, "gpu", "release", r.Node(), "--undo")
	r.waitAllocatable(t, gpuResource, int64(len(gpus)))
	r.create(t, r.cudaPod("again", all, "info"))
	r.prints(t, "again", 1)
	r.remove(t, "again")

	t.Logf("log of the plugin:\n%s", infoLines(r.plugin.log.String()))
}

// infoLines are the lines of a log but those for debugging.
func infoLines(log string) string {
	return regexp.MustCompile(`(?m)^.*level=DEBUG.*\n`).ReplaceAllString(log, "")
}

// codes are the counters of XIDs that are not 0.
func (r *rig) codes(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(r.metrics(t, "heddle_gpu_health_codes_total"), func(line string) bool {
		return strings.HasSuffix(line, " 0")
	})
}

// closedToOthers: a container without a GPU has the real device node, mounted from the host,
// and one that it makes itself, and can open neither.
func (r *rig) closedToOthers(t *testing.T) {
	t.Helper()
	var node unix.Stat_t
	if err := unix.Stat("/dev/nvidia0", &node); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(r.dir, "gpus", "nvidia0")
	if err := unix.Mknod(copied, unix.S_IFCHR|0o666, int(node.Rdev)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(copied, 0o666); err != nil {
		t.Fatal(err)
	}
	r.run(t, r.pod("without", box{}))
	open := r.report(t, "without", "app").Open
	for _, path := range []string{"/host/gpus/nvidia0", "/made/gpus/nvidia0"} {
		if open[path] != "EPERM" {
			t.Errorf("a container without a GPU opens %s: %q", path, open[path])
		}
	}
	r.remove(t, "without")
}

// TestHardwareUpgrade: the library of a real driver is replaced under a running plugin, here by a
// copy that is mounted over it, while a program computes. The plugin ends by itself and serves the GPUs
// again; the program sees nothing of it, and the next one starts.
func TestHardwareUpgrade(t *testing.T) {
	r, gpus := hardwareRig(t, "hwupgrade", quickHealth)
	ends := r.plugin.supervise(t)
	r.waitRegistered(t)
	all := corev1.ResourceList{gpuResource: quantity(len(gpus))}
	r.waitAllocatable(t, gpuResource, int64(len(gpus)))
	r.create(t, r.cudaPod("before", all, "info", "spin", "30", "wait"))
	r.prints(t, "before", 1)

	library := r.plugin.library(t, "libnvidia-ml.so")
	other := filepath.Join(r.dir, filepath.Base(library))
	text, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other, text, 0o600); err != nil {
		t.Fatal(err)
	}
	mount, err := r.NodeCommand(t.Context(), "mount", "--bind", other, library)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := mount.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	replaced := time.Now()
	eventually(t, func() string {
		if ends() == 0 {
			return "the plugin goes on with a library that is not installed any more"
		}
		return ""
	})
	if len(r.plugin.log.grep("the driver was upgraded")) == 0 {
		t.Error("the plugin ended without the reason")
	}
	r.waitRegistered(t)
	t.Logf("%.1f s after the library was replaced the plugin is registered again", time.Since(replaced).Seconds())
	r.waitAllocatable(t, gpuResource, int64(len(gpus)))
	if spun := r.prints(t, "before", 2)[1]; number(t, spun, "spin") <= 0 {
		t.Errorf("the program that ran printed %q", spun)
	}
	if ends() != 1 {
		t.Errorf("the plugin ended %d times", ends())
	}
	r.remove(t, "before")
	r.create(t, r.cudaPod("after", all, "info", "spin", "1"))
	r.prints(t, "after", 2)
	t.Logf("log of the plugin:\n%s", infoLines(r.plugin.log.String()))
}

// TestHardwareMPS: what NVIDIA's MPS makes of the limits that heddle sets.
func TestHardwareMPS(t *testing.T) {
	r, gpus := hardwareRig(t, "hwmps", sharedGPUs+"sgpu: {enforce: {memory: mps, compute: mps}}\n")
	state, err := os.MkdirTemp("", "mps") //nolint:usetesting // Paths of sockets are short.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	keeper := r.another(t, r.plugin.binary, mpsDaemon, "--state-dir", state)
	if err := keeper.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.plugin.args = append(r.hostFlags(), "--state-dir", state, "--mps")
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitAllocatable(t, slotResource, int64(16*len(gpus)))

	r.create(t, r.cudaPod("quarter", share(25, 8), "info", "alloc", "4096", "fill", "spin", "8", "wait"))
	r.prints(t, "quarter", 3)
	r.create(t, r.cudaPod("rest", share(75, 16), "info", "fill", "spin", "6", "wait"))
	rest := r.prints(t, "rest", 3)
	quarter := r.prints(t, "quarter", 4)
	few, many := parseInside(t, quarter[0])[0], parseInside(t, rest[0])[0]
	if few.Multiprocessors >= many.Multiprocessors {
		t.Errorf("vcore 25 has %d multiprocessors, vcore 75 %d", few.Multiprocessors, many.Multiprocessors)
	}
	for _, c := range []struct {
		pod, line string
		had, most int
	}{{"quarter", quarter[2], 4096, 8192}, {"rest", rest[1], 0, 16384}} {
		got := c.had + int(number(t, c.line, "fill"))
		if got > c.most || got < c.most*7/10 || !strings.HasSuffix(c.line, ": 2") {
			t.Errorf("%s has %d MiB, its share is %d: %q", c.pod, got, c.most, c.line)
		}
	}
	if slow, fast := number(t, quarter[3], "spin"), number(t, rest[2], "spin"); slow >= fast {
		t.Errorf("vcore 25 has %.1f rounds a second, vcore 75 %.1f", slow, fast)
	}

	// A process that drops its limits has those of the server: the largest share.
	r.remove(t, "quarter")
	drops := []string{"unset", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "unset", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "info", "fill"}
	r.create(t, r.cudaPod("drops", share(25, 8), drops...))
	if line := r.prints(t, "drops", 2)[1]; number(t, line, "fill") > 16384 {
		t.Errorf("without its variables a process has %s MiB, the largest share is 16384", line)
	}
	r.remove(t, "drops")

	// The limit is each process's.
	r.create(t, r.cudaPod("two", share(25, 8), "fork", "fill", "wait"))
	sum := 0.0
	for _, line := range r.prints(t, "two", 2) {
		sum += number(t, line, "fill")
	}
	if sum <= 8192 {
		t.Errorf("two processes of a container have %.0f MiB together: docs/concepts/enforcers.md has that each has the limit", sum)
	}
	r.remove(t, "two")

	// The plugin is killed and starts again under a client at work, whose daemon heddle-mps keeps.
	r.create(t, r.cudaPod("kept", share(25, 8), "info", "spin", "12"))
	r.prints(t, "kept", 1)
	r.plugin.kill(t)
	r.plugin.again(t)
	r.create(t, r.cudaPod("next", share(25, 8), "info", "alloc", "64"))
	if line := r.prints(t, "next", 2)[1]; line != "alloc 64: 0" {
		t.Errorf("after the plugin's restart: %q", line)
	}
	if line := r.prints(t, "kept", 2)[1]; number(t, line, "spin") <= 0 {
		t.Errorf("under the plugin's restart: %q", line)
	}
	r.remove(t, "kept", "next")

	// Who is killed with work under way.
	r.create(t, r.cudaPod("neighbor", share(25, 8), "spin", "12"))
	killed := r.cudaPod("killed", share(25, 8), "alloc", "64", "spin", "30")
	killed.Spec.TerminationGracePeriodSeconds = new(int64(0))
	r.create(t, killed)
	r.prints(t, "killed", 1)
	r.remove(t, "killed")
	t.Logf("a neighbor of a client that was killed: %q", r.prints(t, "neighbor", 1))
	r.remove(t, "neighbor")

	// A fault of one is every client's; heddle makes the GPU usable again.
	r.create(t, r.cudaPod("faulty", share(25, 8), "fault"))
	r.prints(t, "faulty", 1)
	r.create(t, r.cudaPod("beside", share(25, 8), "alloc", "64"))
	t.Logf("while a client that was there at the fault lives: %q", r.prints(t, "beside", 1))
	r.remove(t, "rest", "faulty", "beside")
	r.create(t, r.cudaPod("after", share(25, 8), "alloc", "64"))
	if got := r.prints(t, "after", 1); got[0] != "alloc 64: 0" {
		t.Errorf("after the fault, when its clients are gone: %q", got)
	}
	t.Logf("log of the plugin:\n%s\nlog of heddle-mps:\n%s", infoLines(r.plugin.log.String()), infoLines(keeper.log.String()))
}

// TestHardwareUsage: what a container uses of its GPU is what the driver counts for its
// processes, and one that uses more than its share is evicted.
func TestHardwareUsage(t *testing.T) {
	r, gpus := hardwareRig(t, "usage", sharedGPUs+"sgpu: {enforce: {memory: evict}}\n")
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitAllocatable(t, slotResource, int64(16*len(gpus)))
	r.create(t,
		r.cudaPod("large", share(40, 10), "alloc", "9216", "wait"),
		r.cudaPod("busy", share(40, 2), "alloc", "1024", "spin", "45", "wait"))
	r.prints(t, "large", 1)
	r.prints(t, "busy", 1)
	eventually(t, func() string {
		large, busy, sm := r.uses(t, "memory_used_bytes", "large"), r.uses(t, "memory_used_bytes", "busy"), r.uses(t, "sm_used_percent", "busy")
		if large < 9216<<20 || large > 10240<<20 || busy < 1024<<20 || busy > 2048<<20 || sm < 50 {
			return fmt.Sprintf("large uses %.0f bytes, busy %.0f and %.0f %% of the time", large, busy, sm)
		}
		t.Logf("large uses %.0f bytes, busy %.0f and %.0f %% of the time", large, busy, sm)
		return ""
	})
	r.create(t, r.cudaPod("greedy", share(10, 4), "alloc", "6144", "wait"))
	r.waitEvent(t, "greedy", "ShareExceeded", "its share is 4096 MiB")
	r.waitGone(t, "greedy")
	r.waitEvent(t, "greedy", "ShareEvicted", "MiB of GPU")
	for _, name := range []string{"large", "busy"} {
		if p := r.getPod(t, name); p == nil || p.Status.Phase != corev1.PodRunning {
			t.Errorf("%s is within its share: %s", name, inShort(p))
		}
	}
	t.Logf("Events of the evicted pod: %q", r.events(t, "greedy", "ShareExceeded"))
	t.Logf("heddle doctor --node:\n%s", r.heddle(t, "doctor", "--node", r.Node()))
}

// uses is what a pod's container uses of a shared GPU, by the plugin's metrics; -1 if that
// is not known.
func (r *rig) uses(t *testing.T, metric, pod string) float64 {
	t.Helper()
	for _, line := range r.metrics(t, "heddle_share_"+metric) {
		if strings.Contains(line, fmt.Sprintf("pod=%q", pod)) {
			n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return -1
}
