//go:build e2e && linux

package devices

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/heddle-dev/heddle/api/allocation"
)

// theirNames is a node for the pods of HAMi's NVIDIA backend, as docs/operate/hami.md has it.
const theirNames = sharedGPUs + `resources:
  sgpu: nvidia.com/gpu
  vcore: nvidia.com/gpucores
  vmemory: nvidia.com/gpumem
  vmemoryUnit: MiB
  vmemoryPercentage: nvidia.com/gpumem-percentage
`

// TestHAMiPodsUnchanged runs pods with the limits of HAMi's NVIDIA backend as they
// are, through the real API server and kubelet: each has the memory in MiB that it
// asks for, in the environment of the library that limits it.
func TestHAMiPodsUnchanged(t *testing.T) {
	r := newRig(t, options{name: "theirs", config: theirNames + "sgpu: {gpus: [0, 1]}\n"})
	r.configure(t, theirNames+"sgpu: {gpus: [0, 1], defaults: {vcore: 0}, enforce: {memory: preload, compute: preload, "+
		"preloadLibrary: "+r.library(t)+"}}\n")
	r.waitAllocatable(t, gpuResource, 2*16)
	r.waitAllocatable(t, "nvidia.com/gpu.exclusive", 6)
	for _, name := range []string{"nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", slotResource} {
		if n := r.allocatable(t, name); n != -1 {
			t.Errorf("the Node has %d of %s", n, name)
		}
	}
	first, second := "", r.gpuAt(t, 1) // The first is the one that the kubelet's device ID names.
	for _, tt := range []struct {
		name, limits string
		want         []allocation.Share
	}{
		{"cores-and-memory", "{nvidia.com/gpu: 1, nvidia.com/gpucores: 30, nvidia.com/gpumem: 3000}", []allocation.Share{{VCore: 30, MemoryMiB: 3000}}},
		{"half", "{nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 50}", []allocation.Share{{MemoryMiB: 40779}}},
		{"memory-of-two", "{nvidia.com/gpu: 2, nvidia.com/gpumem: 1024, nvidia.com/gpucores: 0}", []allocation.Share{{MemoryMiB: 1024}, {MemoryMiB: 1024}}},
	} {
		p := r.pod(tt.name, box{})
		p.Spec.NodeName = r.Node() // The default scheduler knows no gpumem.
		container := &p.Spec.Containers[0]
		if err := yaml.Unmarshal([]byte("limits: "+tt.limits), &container.Resources); err != nil {
			t.Fatal(err)
		}
		r.run(t, p)
		got := r.hasShares(t, tt.name, "app", tt.want...)
		if first == "" {
			if first = got[0].UUID; first == second {
				second = r.gpuAt(t, 0)
			}
		}
		if len(got) == 1 && got[0].UUID != first {
			t.Errorf("%s is on %s, and the first GPU %s has room", tt.name, got[0].UUID, first)
		}
		env := r.sees(t, tt.name, "app").Env
		for i, s := range tt.want {
			at := "_" + strconv.Itoa(i)
			if limit, want := env["CUDA_DEVICE_MEMORY_LIMIT"+at], strconv.FormatInt(s.MemoryMiB, 10)+"m"; limit != want {
				t.Errorf("%s: the library's limit of memory is %q, want %q", tt.name, limit, want)
			}
			cores := s.VCore
			if cores == 0 {
				cores = 100
			}
			if limit := env["CUDA_DEVICE_SM_LIMIT"+at]; limit != strconv.Itoa(cores) {
				t.Errorf("%s: the library's limit of compute is %q, want %d", tt.name, limit, cores)
			}
		}
	}
	want := map[string]allocation.Taken{first: {VCore: 30, MemoryMiB: 3000 + 40779 + 1024, Slots: 3}, second: {MemoryMiB: 1024, Slots: 1}}
	eventually(t, func() string {
		got := map[string]allocation.Taken{}
		for _, g := range r.published(t).GPUs {
			got[g.UUID] = g.Taken
		}
		return cmp.Diff(want, got)
	})
	// All memory, which neither GPU has left.
	p := r.pod("bare", box{more: corev1.ResourceList{gpuResource: quantity(1)}})
	r.create(t, p)
	r.waitWaiting(t, "bare", "none of 2 GPUs can give all memory")
}
