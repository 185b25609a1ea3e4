// Package allocation reads and writes the annotations about GPUs: the GPUs that a scheduler chose
// for a pod, the shares that its node prepared, the use of a Node's shared GPUs, and a Node's free
// exclusive GPUs. HAMi's format is in sharing/hami.
//
// The package owns the JSON, its versions and its bounds. It treats what others
// write as hostile: every parser is strict, bounded and fuzzed, and rejects a text
// with any invalid value as a whole. It knows neither the capacity of a GPU nor
// the request of a pod: that a text is well formed does not make it true.
package allocation

import (
	"errors"
	"fmt"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// Version is the version that this package reads and writes.
const Version = 1

// Share is a part of one GPU that one container has.
type Share struct {
	// UUID is the GPU's.
	UUID string `json:"uuid"`
	// VCore is percent of the GPU's compute: 100 is the GPU to itself, 0 has
	// no limit and counts for nothing (best-effort).
	VCore int `json:"vcore"`
	// MemoryMiB is never "the rest": the component that chose the GPU sets the
	// amount. 0 is a GPU with unknown memory.
	MemoryMiB int64 `json:"memoryMiB"`
}

// Allocation is heddle-scheduler's decision for a pod: the annotation
// heddle.dev/sgpu-allocation. It comes with the Binding and never changes.
type Allocation struct {
	Version int `json:"version"`
	// Node is the node of the GPUs. The allocation is void for a pod that was bound to another
	// node.
	Node string `json:"node"`
	// Containers have one Share per GPU, by container name, init containers
	// among them.
	Containers map[string][]Share `json:"containers"`
}

// ParseAllocation reads an annotation.
func ParseAllocation(text string) (*Allocation, error) {
	return parse("allocation", text, func(a *Allocation) error {
		return checkPod(a.Version, a.Node, a.Containers, CheckShares)
	})
}

// String returns the annotation's text.
func (a *Allocation) String() string { return encode(a) }

// The components that choose the GPUs of a [Sharing].
const (
	ByScheduler = "heddle-scheduler"
	ByHAMi      = "hami"
	ByNode      = "node"
)

// Bound has the shares of a pod's containers: the annotation
// heddle.dev/sgpu-bound, written by the pod's node. Schedulers prefer it
// to any allocation.
type Bound struct {
	Version int    `json:"version"`
	Node    string `json:"node"`
	// Containers lists the started containers by name.
	Containers map[string]Sharing `json:"containers"`
}

// Sharing has the shares of one container: in its pod's annotation, its checkpoint entry, the node's
// report and, as HEDDLE_SHARES, its environment.
type Sharing struct {
	Shares []Share `json:"shares,omitempty"`
	// Policy is the QoS policy of the shares, as package quota spells it.
	Policy string `json:"policy,omitempty"`
	// By is the component that chose the GPUs: [ByScheduler], [ByHAMi] or [ByNode].
	By string `json:"by,omitempty"`
	// NotEnforced lists the parts of the shares that are counted and not limited:
	// memory, compute.
	NotEnforced []string `json:"notEnforced,omitempty"`
}

// ParseBound reads an annotation.
func ParseBound(text string) (*Bound, error) {
	return parse("bound shares", text, func(b *Bound) error {
		return checkPod(b.Version, b.Node, b.Containers, Sharing.check)
	})
}

func (c Sharing) check() error {
	if c.By != ByScheduler && c.By != ByHAMi && c.By != ByNode {
		return fmt.Errorf("by: unknown %q", wellknown.Clip(c.By))
	}
	for _, what := range c.NotEnforced {
		if !isLabel(what) {
			return fmt.Errorf("notEnforced: invalid label %q", wellknown.Clip(what))
		}
	}
	return errors.Join(CheckShares(c.Shares), checkPolicy(c.Policy))
}

// String returns the annotation's text.
func (b *Bound) String() string { return encode(b) }
