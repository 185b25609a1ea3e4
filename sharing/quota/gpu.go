// Package quota decides which card a request for a share of a GPU gets: what
// a card has left, which requests go together on one card, and why not.
//
// It is pure: it computes from cards and requests, and knows neither pods nor
// the kubelet nor the hardware. Compute is percent of one card (vcore), memory
// MiB. Who holds what is its callers' business: they give cards with what is
// taken, and nothing here is remembered.
package quota

import (
	"slices"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
)

// Whole is the vcore of a card: a request for all of it is exclusive.
const Whole = 100

// Policy is the QoS policy of a share: what its compute limit means.
type Policy string

// The policies. The tenants of a card have one and the same at a time.
const (
	// FixedShare is a limit that holds even if the card is idle.
	FixedShare Policy = "fixed-share"
	// BurstShare is a guarantee that may be passed while the card is idle.
	BurstShare Policy = "burst-share"
	// BestEffort has no limit. A vcore that is asked for is counted
	// nevertheless, none is counted 0.
	BestEffort Policy = "best-effort"
)

// Request is what one container asks for: the same of each of Cards different
// cards.
type Request struct {
	GPUs int
	// VCore is 1 to 100; 100 wants the card to itself. 0 is best-effort without
	// a vcore: no limit, nothing counted.
	VCore int
	// MemoryMiB of 0 is the whole memory of whatever card it gets.
	MemoryMiB int64
	Policy    Policy
	// Use are the UUIDs of the only cards to use, none means all; Avoid are
	// those of cards not to use, whatever Use says.
	Use, Avoid []string
	// Placement is which card comes first; empty is as the node or the
	// scheduler is configured.
	Placement config.Placement
}

// GPU is one shared card: what it has, and what is taken of it.
type GPU struct {
	UUID string
	// Index is the driver's number, for people.
	Index int
	// MemoryMiB of 0 is unknown: one tenant can have it, which asks for no
	// amount.
	MemoryMiB int64
	// Slots is how many tenants it may have.
	Slots int
	// NUMA is -1 if unknown. Cards of one Zone are joined by NVLink; 0 is none.
	NUMA, Zone int
	// Against is why nobody new gets the card; empty if it is well.
	Unhealthy string
	// Leaving tells that Against is about newcomers alone: who was promised a
	// slot of this card may still have it.
	Draining bool

	// VCore and UsedMiB are what the Tenants have, Policy is theirs, empty
	// without any and with an exclusive one.
	VCore     int
	UsedMiB   int64
	Consumers int
	Policy    Policy
	// Exclusive tells that the tenant has the card to itself.
	Exclusive bool
}

// Share is what a request takes of the card.
func (c *GPU) Share(r *Request) allocation.Share {
	return allocation.Share{UUID: c.UUID, VCore: r.VCore, MemoryMiB: c.needs(r)}
}

// needs is the memory that a request takes of the card.
func (c *GPU) needs(r *Request) int64 {
	if r.MemoryMiB == 0 {
		return c.MemoryMiB
	}
	return r.MemoryMiB
}

// Take gives the card a tenant. It does not ask whether it may: see
// [GPU.Refuses].
func (c *GPU) Take(r *Request) { c.Add(c.Share(r), r.Policy) }

// Add is Take for a share that was given out before, which is what it is even
// if the card cannot carry it.
func (c *GPU) Add(s allocation.Share, p Policy) {
	c.Consumers++
	c.VCore += s.VCore
	c.UsedMiB += s.MemoryMiB
	if s.VCore >= Whole {
		c.Exclusive = true
	} else if c.Policy == "" {
		c.Policy = p
	}
}

// Refuses tells why the card cannot take a request; [Reason.None] if it can.
// It allocates nothing.
func (c *GPU) Reject(r *Request) Reason {
	switch {
	case len(r.Use) > 0 && !slices.Contains(r.Use, c.UUID):
		return Reason{Cause: NotSelected, Index: c.Index}
	case slices.Contains(r.Avoid, c.UUID):
		return Reason{Cause: Avoided, Index: c.Index}
	case c.Unhealthy != "":
		return Reason{Cause: NotHealthy, Index: c.Index, Detail: c.Unhealthy}
	case r.MemoryMiB > c.MemoryMiB:
		return Reason{Cause: TooSmall, Index: c.Index, Of: c.MemoryMiB, Need: r.MemoryMiB}
	case c.Exclusive:
		return Reason{Cause: Exclusive, Index: c.Index}
	case c.Consumers > 0 && (r.VCore >= Whole || c.MemoryMiB <= 0):
		return Reason{Cause: NotIdle, Index: c.Index, Of: int64(c.Consumers)}
	case c.Consumers >= c.Slots:
		return Reason{Cause: NoSlot, Index: c.Index, Of: int64(c.Slots)}
	case c.Policy != "" && c.Policy != r.Policy:
		return Reason{Cause: OtherPolicy, Index: c.Index, Detail: string(c.Policy), Policy: r.Policy}
	case c.VCore+r.VCore > Whole:
		left := int64(max(0, Whole-c.VCore))
		return Reason{Cause: NoCompute, Index: c.Index, Left: left, Of: Whole, Need: int64(r.VCore)}
	case c.UsedMiB+c.needs(r) > c.MemoryMiB:
		left := max(0, c.MemoryMiB-c.UsedMiB)
		return Reason{Cause: NoMemory, Index: c.Index, Left: left, Of: c.MemoryMiB, Need: c.needs(r)}
	}
	return Reason{}
}
