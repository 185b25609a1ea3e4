//go:build e2e && linux

package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/test/nvidia"
)

// evictConfig shares one GPU of 79.6 GiB, and offers 1.5 times its memory.
const evictConfig = sharedGPUs + "sgpu: {gpus: [0], rejectedFor: 0s, memoryOvercommit: 1.5, " +
	"enforce: {memory: evict}}\n"

// TestOverShareIsEvicted: on a real kubelet, with a driver that reports the memory of the
// pods' real processes, a pod over its share is warned and evicted. When the GPU is full,
// the pod of the lowest priority makes room for one of a higher that has not all of its
// share, and the others stay.
func TestOverShareIsEvicted(t *testing.T) {
	r, n := newDriverRig(t, "evict")
	// The processes are this machine's.
	r.plugin.args = append(r.plugin.args, "--proc-root", "/proc")
	r.configure(t, evictConfig)
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitRegistered(t)
	r.waitShares(t, 16, 100, 119)
	for name, value := range map[string]int32{"low": -5, "high": 1000} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
		if _, err := r.client.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// uses has the driver report memory of a pod's process.
	uses := func(name string, gib int64) {
		pid := r.processOf(t, name)
		n.control.Processes = slices.DeleteFunc(n.control.Processes, func(p nvidia.Process) bool { return p.PID == pid })
		n.control.Processes = append(n.control.Processes, nvidia.Process{GPU: 0, PID: pid, Bytes: gib << 30})
		n.set(t)
	}
	run := func(name, class string, gib int) *corev1.Pod {
		p := r.pod(name, box{more: share(10, gib)})
		p.Spec.PriorityClassName = class
		return r.run(t, p)
	}

	run("greedy", "", 4)
	run("polite", "", 4)
	uses("greedy", 6)
	uses("polite", 4)
	r.waitEvent(t, "greedy", "ShareExceeded", "container app has 6144 MiB of GPU 0, and its share is 4096 MiB")
	r.waitGone(t, "greedy")
	r.waitEvent(t, "greedy", "ShareEvicted", "container app has 6144 MiB of GPU 0")

	high, middle, low := run("high", "high", 38), run("middle", "", 38), run("low", "low", 38)
	if *high.Spec.Priority != 1000 || *middle.Spec.Priority != 0 || *low.Spec.Priority != -5 {
		t.Fatalf("priorities %d, %d, %d", *high.Spec.Priority, *middle.Spec.Priority, *low.Spec.Priority)
	}
	// With polite 78 of 79.6 GiB, each within its share.
	uses("high", 2)
	uses("middle", 38)
	uses("low", 34)
	r.waitEvent(t, "low", "ShareExceeded", "which is full, and a container of priority 1000 has not all of its share; its own is -5")
	r.waitGone(t, "low")
	// Long enough for one that is over its share to be evicted.
	for end := time.Now().Add(110 * time.Second); time.Now().Before(end); pause(t, time.Second) {
		for _, name := range []string{"polite", "middle", "high"} {
			if p := r.getPod(t, name); p == nil || p.DeletionTimestamp != nil || !ready(p) {
				t.Fatalf("%s did not stay: %v", name, p)
			}
		}
	}
	lines := r.metrics(t, "heddle_overuse_evictions_total")
	for _, want := range []string{`{reason="memory"} 1`, `{reason="full"} 1`} {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasSuffix(line, want) }) {
			t.Errorf("metrics %q, want %s", lines, want)
		}
	}
}

// waitGone waits until there is no pod of a name.
func (r *rig) waitGone(t *testing.T, name string) {
	t.Helper()
	eventually(t, func() string {
		if p := r.getPod(t, name); p != nil {
			return "the pod is there: " + inShort(p)
		}
		return ""
	})
}

// processOf is a process of a pod's container, as the host sees it.
func (r *rig) processOf(t *testing.T, name string) int {
	t.Helper()
	id := status(r.getPod(t, name), "app").ContainerID
	_, id, _ = strings.Cut(id, "://")
	paths, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil || id == "" {
		t.Fatal(fmt.Errorf("container %q of %s: %w", id, name, err))
	}
	for _, path := range paths {
		// Processes end while they are looked at.
		if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), id) {
			pid, err := strconv.Atoi(strings.Split(path, "/")[2])
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("%s has no process", name)
	return 0
}
