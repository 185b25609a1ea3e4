package quota

import (
	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// Publish gives cards as the Node's annotation has them.
func Publish(cards []GPU) *allocation.NodeGPUs {
	all := &allocation.NodeGPUs{Version: allocation.Version, Cards: make([]allocation.GPU, 0, len(cards))}
	for i := range cards {
		c := &cards[i]
		card := allocation.GPU{
			UUID: c.UUID, Index: c.Index, MemoryMiB: c.MemoryMiB, Slots: c.Slots, Zone: max(0, c.Zone),
			Healthy: c.Unhealthy == "", Reason: wellknown.ClipTo(c.Unhealthy, allocation.MaxReason),
			Policy: string(c.Policy), Exclusive: c.Exclusive,
			Taken: allocation.Taken{VCore: c.VCore, MemoryMiB: c.UsedMiB, Slots: c.Consumers},
		}
		if c.NUMA >= 0 {
			card.NUMA = new(c.NUMA)
		}
		all.Cards = append(all.Cards, card)
	}
	return all
}

// Published are the cards of a Node's annotation.
func Published(all *allocation.NodeGPUs) []GPU {
	cards := make([]GPU, 0, len(all.Cards))
	for i := range all.Cards {
		c := &all.Cards[i]
		card := GPU{
			UUID: c.UUID, Index: c.Index, MemoryMiB: c.MemoryMiB, Slots: c.Slots, NUMA: -1, Zone: c.Zone,
			Unhealthy: c.Reason, VCore: c.Taken.VCore, UsedMiB: c.Taken.MemoryMiB, Consumers: c.Taken.Slots,
			Policy: Policy(c.Policy), Exclusive: c.Exclusive,
		}
		if c.NUMA != nil {
			card.NUMA = *c.NUMA
		}
		cards = append(cards, card)
	}
	return cards
}
