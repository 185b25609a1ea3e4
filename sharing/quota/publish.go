package quota

import (
	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Publish gives GPUs as the Node's annotation has them.
func Publish(gpus []GPU) *allocation.NodeGPUs {
	all := &allocation.NodeGPUs{Version: allocation.Version, GPUs: make([]allocation.GPU, 0, len(gpus))}
	for i := range gpus {
		c := &gpus[i]
		gpu := allocation.GPU{
			UUID: c.UUID, Index: c.Index, MemoryMiB: c.MemoryMiB, Slots: c.Slots, Zone: max(0, c.Zone),
			Healthy: c.Unhealthy == "", Reason: wellknown.ClipTo(c.Unhealthy, allocation.MaxReason),
			Policy: string(c.Policy), Exclusive: c.Exclusive,
			Taken: allocation.Taken{VCore: c.VCore, MemoryMiB: c.UsedMiB, Slots: c.Consumers},
		}
		if c.NUMA >= 0 {
			gpu.NUMA = new(c.NUMA)
		}
		all.GPUs = append(all.GPUs, gpu)
	}
	return all
}

// Published are the GPUs of a Node's annotation.
func Published(all *allocation.NodeGPUs) []GPU {
	gpus := make([]GPU, 0, len(all.GPUs))
	for i := range all.GPUs {
		c := &all.GPUs[i]
		gpu := GPU{
			UUID: c.UUID, Index: c.Index, MemoryMiB: c.MemoryMiB, Slots: c.Slots, NUMA: -1, Zone: c.Zone,
			Unhealthy: c.Reason, VCore: c.Taken.VCore, UsedMiB: c.Taken.MemoryMiB, Consumers: c.Taken.Slots,
			Policy: Policy(c.Policy), Exclusive: c.Exclusive,
		}
		if c.NUMA != nil {
			gpu.NUMA = *c.NUMA
		}
		gpus = append(gpus, gpu)
	}
	return gpus
}
