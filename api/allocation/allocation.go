// Package allocation is the text of annotations about shares of GPUs: which
// cards a scheduler chose for a pod, which ones its node bound, what the cards
// of a Node have left; and HAMi's spelling of the same. And which whole GPUs of
// a Node are free.
//
// It owns the JSON, its versions and its bounds. What others write is hostile:
// every parser is strict, bounded and fuzzed, and a text that says anything
// senseless is refused as a whole. It knows neither what a card can carry nor
// what a pod asked for: that a text is well formed does not make it true. It
// imports nothing of ours.
package allocation

import (
	"errors"
	"fmt"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// Version is the one that this package reads and writes.
const Version = 1

// Share is a part of one card that one container has.
type Share struct {
	// UUID is the card's.
	UUID string `json:"uuid"`
	// VCore is percent of the card's compute: 100 is the card to itself, 0 has
	// no limit and counts for nothing (best-effort).
	VCore int `json:"vcore"`
	// MemoryMiB is never "the rest": who chose the card says how much it is. 0
	// is a card whose memory nobody knows.
	MemoryMiB int64 `json:"memoryMiB"`
}

// Allocation is what heddle-scheduler decided for a pod: the annotation
// heddle.dev/sgpu-allocation. It comes with the Binding and never changes.
type Allocation struct {
	Version int `json:"version"`
	// Node is where the cards are. A pod that was bound elsewhere after all
	// has no allocation.
	Node string `json:"node"`
	// Containers have one Share per card, by container name, init containers
	// among them.
	Containers map[string][]Share `json:"containers"`
}

// ParseAllocation reads an annotation.
func ParseAllocation(text string) (*Allocation, error) {
	var a Allocation
	if err := decode(text, &a); err != nil {
		return nil, fmt.Errorf("allocation: %w", err)
	}
	if err := checkPod(a.Version, a.Node, a.Containers, checkShares); err != nil {
		return nil, fmt.Errorf("allocation: %w", err)
	}
	return &a, nil
}

// String is the annotation's text.
func (a *Allocation) String() string { return encode(a) }

// Who decided a [BoundContainer].
const (
	ByScheduler = "heddle-scheduler"
	ByHAMi      = "hami"
	ByNode      = "node"
)

// Bound is what the containers of a pod have: the annotation
// heddle.dev/sgpu-bound, written by the pod's node. Schedulers believe it
// before any allocation.
type Bound struct {
	Version int    `json:"version"`
	Node    string `json:"node"`
	// Containers are those that have been started, by container name.
	Containers map[string]BoundContainer `json:"containers"`
}

// BoundContainer is what one container has.
type BoundContainer struct {
	Shares []Share `json:"shares"`
	// Policy is the QoS policy of the shares, as package sharing spells it.
	Policy string `json:"policy"`
	// By is who chose the cards: [ByScheduler], [ByHAMi] or [ByNode].
	By string `json:"by"`
}

// ParseBound reads an annotation.
func ParseBound(text string) (*Bound, error) {
	var b Bound
	if err := decode(text, &b); err != nil {
		return nil, fmt.Errorf("bound shares: %w", err)
	}
	err := checkPod(b.Version, b.Node, b.Containers, func(c BoundContainer) error {
		if c.By != ByScheduler && c.By != ByHAMi && c.By != ByNode {
			return fmt.Errorf("by: unknown %q", wellknown.Clip(c.By))
		}
		return errors.Join(checkShares(c.Shares), checkPolicy(c.Policy))
	})
	if err != nil {
		return nil, fmt.Errorf("bound shares: %w", err)
	}
	return &b, nil
}

// String is the annotation's text.
func (b *Bound) String() string { return encode(b) }
