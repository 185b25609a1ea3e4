package allocation

import (
	"errors"
	"fmt"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// NodeGPUs is the shared cards of a Node and what is taken of them: the annotation
// heddle.dev/sgpu-cards. Bindings that are younger than it are in their pods'
// [Bound] annotations only.
type NodeGPUs struct {
	Version int `json:"version"`
	// Cards are sorted by Index.
	Cards []GPU `json:"cards"`
}

// GPU is one shared card.
type GPU struct {
	UUID string `json:"uuid"`
	// Index is the driver's number, for people: it changes when a card is lost.
	Index int `json:"index"`
	// MemoryMiB is what all tenants together may have.
	MemoryMiB int64 `json:"memoryMiB"`
	// Slots is how many tenants the card may have.
	Slots int `json:"slots"`
	// NUMA is the node that the card is on; nil is unknown.
	NUMA *int `json:"numa"`
	// Zone numbers the cards that NVLink joins, from 1; 0 is joined to none.
	Zone int `json:"zone"`
	// Healthy cards may get new tenants; Reason is why another may not.
	Healthy bool   `json:"healthy"`
	Reason  string `json:"reason,omitempty"`
	// Policy is the QoS policy of the tenants, empty without any.
	Policy string `json:"policy,omitempty"`
	// Exclusive tells that the one tenant has the card to itself.
	Exclusive bool `json:"exclusive,omitempty"`
	// Taken is what the tenants have.
	Taken Taken `json:"taken"`
}

// Taken is what is taken of a card.
type Taken struct {
	VCore     int   `json:"vcore"`
	MemoryMiB int64 `json:"memoryMiB"`
	Slots     int   `json:"slots"`
}

// ParseNodeGPUs reads an annotation.
func ParseNodeGPUs(text string) (*NodeGPUs, error) {
	var c NodeGPUs
	err := decode(text, &c)
	if err == nil && c.Version != Version {
		err = fmt.Errorf("version %d is unknown, %d is known", c.Version, Version)
	}
	if err == nil && len(c.Cards) > maxCards {
		err = fmt.Errorf("%d cards; at most %d", len(c.Cards), maxCards)
	}
	if err != nil {
		return nil, fmt.Errorf("cards: %w", err)
	}
	seen := make(map[string]bool, len(c.Cards))
	for i := range c.Cards {
		card := &c.Cards[i]
		e := card.check()
		if seen[card.UUID] {
			e = errors.Join(e, errors.New("is there twice"))
		}
		seen[card.UUID] = true
		if e != nil {
			err = errors.Join(err, fmt.Errorf("card %q: %w", wellknown.Clip(card.UUID), e))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cards: %w", err)
	}
	return &c, nil
}

// String is the annotation's text.
func (c *NodeGPUs) String() string { return encode(c) }

func (c *GPU) check() error {
	err := errors.Join(
		checkUUID(c.UUID),
		within("index", int64(c.Index), maxIndex),
		within("memoryMiB", c.MemoryMiB, MaxMemoryMiB),
		within("slots", int64(c.Slots), maxSlots),
		within("zone", int64(c.Zone), maxIndex),
		within("taken.vcore", int64(c.Taken.VCore), maxSlots*100),
		within("taken.memoryMiB", c.Taken.MemoryMiB, MaxMemoryMiB),
		within("taken.slots", int64(c.Taken.Slots), maxSlots),
	)
	if c.NUMA != nil {
		err = errors.Join(err, within("numa", int64(*c.NUMA), maxIndex))
	}
	if c.Policy != "" {
		err = errors.Join(err, checkPolicy(c.Policy))
	}
	if c.Healthy != (c.Reason == "") {
		err = errors.Join(err, errors.New("a card is healthy, or has a reason why not"))
	}
	if len(c.Reason) > MaxReason {
		err = errors.Join(err, fmt.Errorf("reason: longer than %d bytes", MaxReason))
	}
	return err
}
