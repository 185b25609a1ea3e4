//go:build e2e && linux

package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/test/nvidia"
)

// evictConfig shares one GPU of 79.6 GiB, and offers 1.5 times its memory.
const evictConfig = sharedGPUs + "sgpu: {gpus: [0], rejectedFor: 0s, memoryOvercommit: 1.5, " +
	"enforce: {memory: evict}}\n"

// TestOverShareIsEvicted: on a real kubelet, with a driver that reports the memory of the
// pods' real processes, a pod over its share is warned and evicted, and one within it stays.
func TestOverShareIsEvicted(t *testing.T) {
	r, n := newDriverRig(t, "evict")
	// The processes are this machine's.
	r.plugin.args = append(r.plugin.args, "--proc-root", "/proc")
	r.configure(t, evictConfig)
	r.plugin.again(t)
	r.waitShares(t, 16, 100, 119)
	for name, gib := range map[string]int64{"greedy": 6, "polite": 4} {
		r.run(t, r.pod(name, box{more: share(10, 4)}))
		n.control.Processes = append(n.control.Processes, nvidia.Process{GPU: 0, PID: r.processOf(t, name), Bytes: gib << 30})
	}
	n.set(t)
	r.waitEvent(t, "greedy", "ShareExceeded", "container app has 6144 MiB of GPU 0, and its share is 4096 MiB")
	r.waitGone(t, "greedy")
	r.waitEvent(t, "greedy", "ShareEvicted", "container app has 6144 MiB of GPU 0")
	if p := r.getPod(t, "polite"); p == nil || p.DeletionTimestamp != nil || !ready(p) {
		t.Errorf("polite did not stay: %v", p)
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
