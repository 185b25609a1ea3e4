//go:build e2e && linux

package devices

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
)

// overcommittedGPU shares one GPU of 79.6 GiB, and offers 1.5 times its memory.
const overcommittedGPU = sharedGPUs + "sgpu: {gpus: [0], rejectedFor: 0s, memoryOvercommit: 1.5, enforce: {memory: preload, compute: preload, preload: {library: "

// TestMemoryOvercommit: on a real kubelet, three pods of 39 GiB run on one GPU of 79.6, each
// with its own limit, and the fourth waits with the reason. The label is what the GPU has.
func TestMemoryOvercommit(t *testing.T) {
	r := newRig(t, options{name: "overcommit", config: sharedGPUs + "sgpu: {gpus: [0]}\n"})
	r.waitShares(t, 16, 100, 79)
	r.configure(t, overcommittedGPU+r.library(t)+"}}}\n")
	r.waitShares(t, 16, 100, 119)
	gpu := r.gpuAt(t, 0)
	for i := range 3 {
		name := "over-" + strconv.Itoa(i)
		r.run(t, r.pod(name, box{more: share(10, 39)}))
		got := r.hasShares(t, name, "app", 0, allocation.Share{VCore: 10, MemoryMiB: 39 << 10})
		if len(got) == 1 && got[0].UUID != gpu {
			t.Errorf("%s is on %s", name, got[0].UUID)
		}
		if limit := r.sees(t, name, "app").Env["CUDA_DEVICE_MEMORY_LIMIT_0"]; limit != "39936m" {
			t.Errorf("%s: the library's limit of memory is %q", name, limit)
		}
	}
	// The fourth waits for the default scheduler, which counts 2 of 119 left. One that asks for
	// all memory, which the kubelet does not count, waits on the node.
	r.create(t, r.pod("over-3", box{more: share(10, 39)}), r.pod("over-all", box{more: share(10, 0)}))
	r.waitPod(t, "over-3", func(p *corev1.Pod) string {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && strings.Contains(c.Message, "Insufficient "+memoryResource) {
				return ""
			}
		}
		return fmt.Sprintf("its conditions are %+v", p.Status.Conditions)
	})
	r.waitWaiting(t, "over-all", "2.4 GiB of 119.5 left; needs 79.7")
	eventually(t, func() string {
		gpus := r.published(t).GPUs
		if len(gpus) != 1 || gpus[0].MemoryMiB != 81559 || gpus[0].RoomMiB != 122338 || gpus[0].Taken.MemoryMiB != 3*39<<10 {
			return "published " + r.published(t).String()
		}
		return ""
	})
}
