package config

import (
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// MaxMemoryOvercommit is the end of the range of sgpu.memoryOvercommit.
const MaxMemoryOvercommit = 8

// SGPU is how GPUs are shared.
type SGPU struct {
	// GPUs are the GPUs to share, by index or UUID; the others stay native, which makes the node hybrid. Empty
	// means all. An index changes when a GPU is lost, a UUID does not.
	GPUs []GPURef `yaml:"gpus" unique:"true"`
	// SlotsPerGPU is the maximum number of containers that share one GPU.
	SlotsPerGPU int `yaml:"slotsPerGPU" range:"1-100"`
	// MemoryMiB is the memory of a GPU that reports none, since it shares the processor's (GB10, Thor), in MiB. 0 means
	// that it is unknown: such a GPU takes one container, which requests no vmemory.
	MemoryMiB int64 `yaml:"memoryMiB" range:"0-16777216"`
	// MemoryOvercommit is the ratio of the memory of all shares of a GPU to the GPU's own: 1.5 allows shares of
	// 120 GiB on a GPU of 80. One share never exceeds the GPU. 1 disables it. docs/concepts/sharing.md
	// describes what happens when processes fill the GPU.
	MemoryOvercommit float64 `yaml:"memoryOvercommit" range:"1-8"`
	// Defaults are the amounts and the policy that a container omits.
	Defaults ShareDefaults `yaml:"defaults"`
	// Enforce selects the enforcers of limits.
	Enforce Enforce `yaml:"enforce"`
	// Advertise selects the resources for the kubelet: `sgpu` only the slots; `all` also vcore and vmemory;
	// `auto` all, unless HAMi's scheduler counts them itself, or memory is in MiB or percent, which the kubelet
	// cannot count.
	Advertise Advertise `yaml:"advertise" enum:"auto,sgpu,all"`
	// Unscheduled selects what happens to a container without a GPU from a scheduler: `place` lets the node
	// choose one, `reject` rejects it.
	Unscheduled Unscheduled `yaml:"unscheduled" enum:"place,reject"`
	// Placement selects the GPU where the node chooses: `binpack` the one with the least room that suffices,
	// `spread` the one with the most room.
	Placement Placement `yaml:"placement" enum:"binpack,spread"`
	// RejectedFor is the time after which heddle evicts a pod without a GPU, so that it is scheduled again. heddle
	// evicts only a pod that never started and that a controller recreates. `0s` disables it.
	RejectedFor time.Duration `yaml:"rejectedFor" range:"0s-1h"`
	// HAMi enables the protocol of a HAMi scheduler, 2.6 or later, for MetaX sGPU: heddle publishes the node's
	// GPUs in HAMi's Node annotation, follows HAMi's choice for a pod, and releases HAMi's node lock. `auto` enables
	// it where shares have the name that HAMi counts by default, metax-tech.com/sgpu, and HAMi annotates the Node.
	HAMi HAMi `yaml:"hami" enum:"auto,true,false"`
}

// ShareDefaults are the amounts and the policy that a container omits.
type ShareDefaults struct {
	// VCore is percent of compute. 100 means an exclusive GPU. 0 means no limit and nothing counted, as in HAMi
	// and in time-slicing; a container may then also request 0. With policy best-effort it is 0.
	VCore int `yaml:"vcore" json:"vcore" range:"0-100"`
	// VMemory is an amount of memory in place of vmemoryPercentage: GiB, or MiB with `resources.vmemoryUnit:
	// MiB`. 0 means unset.
	VMemory int `yaml:"vmemory" json:"vmemory" range:"0-67108864"`
	// VMemoryPercentage is percent of the chosen GPU's memory.
	VMemoryPercentage int `yaml:"vmemoryPercentage" json:"vmemoryPercentage" range:"1-100"`
	// Policy is the QoS policy of a pod without the annotation.
	Policy QoSPolicy `yaml:"policy" json:"policy" enum:"fixed-share,burst-share,best-effort"`
}

// Enforce selects the enforcers of the limits of shares.
type Enforce struct {
	// Memory is the enforcer of the memory limit. `auto` takes the first that works on the node: dmem, preload,
	// mps, none. `evict` limits no process and evicts pods over their share.
	Memory Enforcer `yaml:"memory" enum:"auto,none,dmem,preload,mps,evict"`
	// Compute is the enforcer of the compute limit. `auto` takes the first that works on the node: mps,
	// preload, none.
	Compute Enforcer `yaml:"compute" enum:"auto,none,mps,preload"`
	// PreloadLibrary is the path on the node of your library for enforcer `preload`, such as
	// /usr/local/vgpu/libvgpu.so, which the dynamic loader puts before the driver's, with the environment of
	// HAMi-core. Empty disables the enforcer.
	PreloadLibrary string `yaml:"preloadLibrary"`
	// MPSMultiUser lets clients of several UIDs share one GPU's server of enforcer `mps`, if the driver
	// supports it. Without it heddle rejects a second UID.
	MPSMultiUser bool `yaml:"mpsMultiUser"`
}

// Slots returns the number of containers that can share a GPU.
func (s *SGPU) Slots(g *machine.GPU) int {
	if reportsNoMemory(*g) {
		return 1
	}
	return s.SlotsPerGPU
}

// RoomMiB returns the memory that all shares of a GPU with this memory may have together.
func (s *SGPU) RoomMiB(memoryMiB int64) int64 {
	return max(memoryMiB, int64(float64(memoryMiB)*s.MemoryOvercommit))
}

// DetectHAMi decides sgpu.hami auto by the annotations of the Node.
func (c *NodeConfig) DetectHAMi(node map[string]string) {
	metaX := wellknown.Domains{Vendor: wellknown.MetaX}
	for key := range node {
		if strings.HasPrefix(key, wellknown.HAMiHandshake) && c.SGPU.HAMi == HAMiAuto &&
			c.Resources.SGPU == metaX.SGPUResource() && c.SGPU.MemoryOvercommit <= 1 {
			c.SGPU.HAMi = HAMiOn
		}
	}
}

// AdvertisesShares reports whether the kubelet receives vcore and vmemory too,
// and not sgpu alone.
func (c *NodeConfig) AdvertisesShares() bool {
	return c.SGPU.Advertise == AdvertiseAll ||
		c.SGPU.Advertise == AdvertiseAuto && c.SGPU.HAMi != HAMiOn && c.Resources.counted()
}

// counted reports whether the kubelet can count memory: a device for each GiB is
// 640 for eight GPUs of 80 GiB, one for each MiB 655,360.
func (r *Resources) counted() bool { return r.VMemoryUnit != MiB && r.VMemoryPercentage == "" }
