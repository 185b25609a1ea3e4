package config

import "time"

// MaxMemoryOvercommit is the end of the range of sgpu.memoryOvercommit.
const MaxMemoryOvercommit = 8

// SGPU is how GPUs are shared.
type SGPU struct {
	// GPUs are the GPUs to share, by index or UUID; the others stay native,
	// which makes the node a hybrid one. Empty means all. Indices change when
	// a GPU is lost, UUIDs do not.
	//
	// Read by: heddle-device-plugin, heddle-feature-discovery.
	GPUs []GPURef `yaml:"gpus" unique:"true"`
	// SlotsPerGPU is how many containers can share one GPU at most.
	//
	// Read by: heddle-device-plugin, heddle-feature-discovery.
	SlotsPerGPU int `yaml:"slotsPerGPU" range:"1-100"`
	// MemoryOvercommit is how much memory all consumers of a GPU together may have,
	// in its own memory: with 1.5, shares of 120 GiB on a GPU of 80. One share
	// is never more than the GPU has. 1 is off. What happens when processes
	// fill the GPU is in docs/concepts/sharing.md.
	//
	// Read by: heddle-device-plugin, heddle-feature-discovery.
	MemoryOvercommit float64 `yaml:"memoryOvercommit" range:"1-8"`
	// Defaults are the amounts and the policy of a share that a container omits.
	//
	// Read by: heddle-device-plugin, heddle-scheduler.
	Defaults ShareDefaults `yaml:"defaults"`
	// Enforce selects the enforcers of limits.
	Enforce Enforce `yaml:"enforce"`
	// Advertise is which resources the kubelet receives. `sgpu` is the slots
	// only; `all` adds vcore and vmemory; `auto` is `all` unless HAMi's
	// protocol is on, because HAMi's scheduler counts them itself, or memory is in MiB or
	// percent too: the kubelet cannot count those.
	//
	// Read by: heddle-device-plugin.
	Advertise Advertise `yaml:"advertise" enum:"auto,sgpu,all"`
	// Unscheduled is the treatment of a container that no GPU-aware
	// scheduler gave a GPU: `place` lets the node choose one, `reject`
	// rejects it.
	//
	// Read by: heddle-device-plugin.
	Unscheduled Unscheduled `yaml:"unscheduled" enum:"place,reject"`
	// Placement is which GPU the node chooses where it chooses: `binpack`
	// the one with the least left that suffices, so that other GPUs stay
	// free; `spread` the one with the most left.
	//
	// Read by: heddle-device-plugin.
	Placement Placement `yaml:"placement" enum:"binpack,spread"`
	// RejectedFor is how long a pod may be rejected for want of a GPU until it
	// is evicted, to be scheduled again. Only a pod that never started and that
	// a controller recreates is evicted; a bare pod keeps the Event. Each next one
	// of that controller waits twice as long, up to eight times this. `0s` is never.
	//
	// Read by: heddle-device-plugin.
	RejectedFor time.Duration `yaml:"rejectedFor" range:"0s-1h"`
	// HAMi has the node work with a HAMi scheduler, 2.6 or later, by its protocol for MetaX
	// sGPU: it publishes the node's GPUs in HAMi's Node annotation, follows the GPU that HAMi
	// chose for a pod, and releases HAMi's node lock.
	//
	// Read by: heddle-device-plugin.
	HAMi bool `yaml:"hami"`
}

// ShareDefaults are the amounts and the policy of a container that does not name
// them.
type ShareDefaults struct {
	// VCore is percent of compute. 100 is the GPU to itself. 0 means no limit, and
	// nothing is counted, as in HAMi and in time-slicing; a container may then
	// ask for 0 too. With policy best-effort it is 0.
	VCore int `yaml:"vcore" json:"vcore" range:"0-100"`
	// VMemory is an amount of memory in place of vmemoryPercentage, which is then left
	// out: GiB, or MiB with resources.vmemoryUnit MiB. 0 means unset.
	VMemory int `yaml:"vmemory" json:"vmemory" range:"0-67108864"`
	// VMemoryPercentage is percent of the memory of the GPU that is chosen.
	VMemoryPercentage int `yaml:"vmemoryPercentage" json:"vmemoryPercentage" range:"1-100"`
	// Policy is the QoS policy of a pod without the annotation.
	Policy QoSPolicy `yaml:"policy" json:"policy" enum:"fixed-share,burst-share,best-effort"`
}

// Enforce selects the enforcers of the limits of shares.
type Enforce struct {
	// Memory is the enforcer of the memory limit; `auto` takes the strongest
	// that works on the node, in the order dmem, preload, mps, none. `evict`
	// limits no process: it ends pods that are over their share.
	//
	// Read by: heddle-device-plugin; heddle-feature-discovery (`mps.capable`).
	Memory Enforcer `yaml:"memory" enum:"auto,none,dmem,preload,mps,evict"`
	// Compute is the enforcer of the compute limit; `auto` takes the strongest
	// that works on the node, in the order mps, preload, none.
	//
	// Read by: heddle-device-plugin; heddle-feature-discovery (`mps.capable`).
	Compute Enforcer `yaml:"compute" enum:"auto,none,mps,preload"`
	// PreloadLibrary is the path on the node of the library for enforcer `preload`, such as
	// /usr/local/vgpu/libvgpu.so, which the dynamic loader puts before the driver's, with the
	// environment of HAMi-core. heddle brings none; empty turns the enforcer off.
	//
	// Read by: heddle-device-plugin.
	PreloadLibrary string `yaml:"preloadLibrary"`
	// MPSMultiUser lets clients of several UIDs share one GPU's server of enforcer `mps`, where
	// the driver can. Without it a second UID is rejected.
	//
	// Read by: heddle-device-plugin.
	MPSMultiUser bool `yaml:"mpsMultiUser"`
}

// RoomMiB returns the memory that all shares of a GPU with this memory may have together.
func (s *SGPU) RoomMiB(memoryMiB int64) int64 {
	return max(memoryMiB, int64(float64(memoryMiB)*s.MemoryOvercommit))
}

// AdvertisesShares reports whether the kubelet receives vcore and vmemory too,
// and not sgpu alone.
func (c *NodeConfig) AdvertisesShares() bool {
	return c.SGPU.Advertise == AdvertiseAll ||
		c.SGPU.Advertise == AdvertiseAuto && !c.SGPU.HAMi && c.Resources.counted()
}

// counted reports whether the kubelet can count memory: a device for each GiB is
// 640 for eight GPUs of 80 GiB, one for each MiB 655,360.
func (r *Resources) counted() bool { return r.VMemoryUnit != MiB && r.VMemoryPercentage == "" }
