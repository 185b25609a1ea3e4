// Package quota chooses the GPU for a request of a share: it computes the free parts of GPUs,
// decides which requests can share a GPU, and explains rejections.
//
// The package is pure: it computes from GPUs and requests, and knows neither pods nor the kubelet
// nor the hardware. Compute is percent of one GPU (vcore), memory is MiB. The callers keep the
// allocations: they pass GPUs with their use, and the package keeps no state.
package quota

import (
	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Whole is the vcore of a GPU: a request for all of it is exclusive.
const Whole = 100

// Policy is the QoS policy of a share: it defines what the compute limit means.
type Policy = config.QoSPolicy

// The policies.
const (
	FixedShare = config.FixedShare
	BurstShare = config.BurstShare
	BestEffort = config.BestEffort
)

// Request is the request of one container: the same amount of each of several
// different GPUs.
type Request struct {
	// GPUs is the number of different GPUs.
	GPUs int
	// VCore is 1 to 100; 100 requests an exclusive GPU. 0 means unlimited and uncounted.
	VCore int
	// MemoryMiB of 0 is MemoryPercent of the memory of the GPU that is chosen, and
	// a MemoryPercent of 0 all of it. One of them is 0.
	MemoryMiB     int64
	MemoryPercent int
	Policy        Policy
	// Selector selects the GPUs that the pod accepts.
	Selector
	// Placement selects the preferred GPU; empty means the configured default of the node or the
	// scheduler.
	Placement config.Placement
}

// GPU holds the capacity and the use of one shared GPU. Its JSON is in the device plugin's report.
type GPU struct {
	UUID string `json:"-"`
	// Index is the driver's number, for people.
	Index int `json:"-"`
	// MemoryMiB of 0 is unknown: the GPU can take one consumer, which requests
	// no amount.
	MemoryMiB int64 `json:"memoryMiB"`
	// RoomMiB bounds the memory of all consumers together if it is more than MemoryMiB, else 0.
	RoomMiB int64 `json:"roomMiB,omitempty"`
	// Slots bounds the consumers of the GPU.
	Slots int `json:"slots"`
	// NUMA is -1 if unknown. NVLink joins GPUs of one Zone; 0 means no zone.
	NUMA int `json:"-"`
	Zone int `json:"-"`
	// Unhealthy is the reason why no new pod gets the GPU; empty if the GPU is
	// healthy.
	Unhealthy string `json:"unhealthy,omitempty"`
	// Draining reports that Unhealthy applies to new pods only: a pod with a
	// reserved slot of this GPU may still have it.
	Draining bool `json:"-"`

	// VCore and UsedMiB are the sums of the Consumers. Policy is the policy of the consumers; it is
	// empty without consumers and with an exclusive one.
	VCore     int    `json:"vcore"`
	UsedMiB   int64  `json:"usedMiB"`
	Consumers int    `json:"consumers"`
	Policy    Policy `json:"policy,omitempty"`
	// Exclusive reports that one consumer has the GPU exclusively.
	Exclusive bool `json:"exclusive,omitempty"`
}

// Share returns the part of the GPU that a request takes.
func (c *GPU) Share(r *Request) allocation.Share {
	return allocation.Share{UUID: c.UUID, VCore: r.VCore, MemoryMiB: c.needs(r)}
}

// needs returns the memory that a request takes of the GPU.
func (c *GPU) needs(r *Request) int64 { return r.MemoryOf(c.MemoryMiB) }

// Room returns the memory that all consumers together may have.
func (c *GPU) Room() int64 { return max(c.MemoryMiB, c.RoomMiB) }

// MemoryOf returns the memory that the request takes of a GPU with so much.
func (r *Request) MemoryOf(totalMiB int64) int64 {
	switch {
	case r.MemoryMiB > 0:
		return r.MemoryMiB
	case r.MemoryPercent > 0:
		// Not below 1: 0 would be all of it to an enforcer.
		return max(totalMiB*int64(r.MemoryPercent)/100, min(totalMiB, 1))
	}
	return totalMiB
}

// Reject reports why the GPU cannot take a request; [Reason.None] if it can.
// It allocates nothing.
func (c *GPU) Reject(r *Request) Reason {
	why := accepted
	switch {
	case !r.Accepts(c.UUID, c.UUID):
		why = excluded
	case c.Unhealthy != "":
		why = unhealthy
	case r.MemoryMiB > c.MemoryMiB:
		why = tooSmall
	case c.Exclusive:
		why = exclusive
	case c.Consumers > 0 && (r.VCore >= Whole || c.MemoryMiB <= 0):
		why = notIdle
	case c.Consumers >= c.Slots:
		why = noSlot
	case c.Policy != "" && c.Policy != r.Policy:
		why = otherPolicy
	case c.VCore+r.VCore > Whole:
		why = noCompute
	case c.UsedMiB+c.needs(r) > c.Room():
		why = noMemory
	}
	return Reason{why, c, r}
}

// Publish gives GPUs as the Node's annotation has them.
func Publish(gpus []GPU) *allocation.NodeGPUs {
	all := &allocation.NodeGPUs{Version: allocation.Version, GPUs: make([]allocation.GPU, 0, len(gpus))}
	for i := range gpus {
		c := &gpus[i]
		gpu := allocation.GPU{
			UUID: c.UUID, Index: c.Index, MemoryMiB: c.MemoryMiB, RoomMiB: c.RoomMiB, Slots: c.Slots, Zone: max(0, c.Zone),
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

// Published returns the GPUs of a Node's annotation.
func Published(all *allocation.NodeGPUs) []GPU {
	gpus := make([]GPU, 0, len(all.GPUs))
	for i := range all.GPUs {
		c := &all.GPUs[i]
		gpu := GPU{
			UUID: c.UUID, Index: c.Index, MemoryMiB: c.MemoryMiB, RoomMiB: c.RoomMiB, Slots: c.Slots, NUMA: -1, Zone: c.Zone,
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
