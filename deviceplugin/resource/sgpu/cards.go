// Package sgpu hands out shares of GPUs: slots of cards (`sgpu`), and what a
// share is counted in, percent of compute (`vcore`) and GiB (`vmemory`).
//
// A slot names a card, which only helps those who read the kubelet's account:
// which card a container gets, and how much of it, is the binder's to decide
// when it starts. Percents and GiB name no card at all. The package keeps no
// account of who has what, and opens no GPU; its calls read an immutable
// snapshot, which Refresh makes anew.
package sgpu

import (
	"cmp"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Modes says how cards are handed out now: a card that pods hold stays as it is
// until they end.
type Modes interface {
	// Shared tells whether a card is handed out in shares, and why nobody new
	// gets any; empty if somebody may.
	Shared(g *machine.GPU) (shared bool, against string)
	// Leaving tells that nobody new gets the card because its mode is to
	// change: who holds a slot of it may still start.
	Leaving(g *machine.GPU) bool
}

// configured are the modes of a node whose cards are all as the configuration
// wants them.
type configured struct{ config *config.NodeConfig }

func (c configured) Shared(g *machine.GPU) (shared bool, against string) {
	return c.config.Shares(g), ""
}

func (configured) Leaving(*machine.GPU) bool { return false }

// Cards are the cards of m that are handed out in shares, by index, with
// nothing taken. Against has what the scan, health and modes say against one.
// Nil modes are the configuration's; a nil health takes the word of the scan.
func Cards(
	m *machine.Machine, c *config.NodeConfig, modes Modes, health func(uuid string) (healthy bool, reason string),
) []quota.GPU {
	if modes == nil {
		modes = configured{c}
	}
	zones := zonesOf(m)
	var cards []quota.GPU
	for i := range m.GPUs {
		g := &m.GPUs[i]
		shared, withheld := modes.Shared(g)
		if !shared || g.UUID == "" {
			continue
		}
		card := quota.GPU{
			UUID: g.UUID, Index: g.Index, MemoryMiB: g.MemoryMiB, Slots: c.SGPU.SlotsPerGPU, NUMA: -1, Zone: zones[i],
			Against: cmp.Or(unfit(g), withheld), Leaving: unfit(g) == "" && modes.Leaving(g),
		}
		if f := m.Function(g.PCI); f != nil && f.NUMA != nil {
			card.NUMA = *f.NUMA
		}
		if health != nil && (card.Against == "" || card.Leaving) {
			if healthy, reason := health(g.UUID); !healthy {
				card.Against, card.Leaving = cmp.Or(reason, "unhealthy"), false
			}
		}
		cards = append(cards, card)
	}
	slices.SortStableFunc(cards, func(a, b quota.GPU) int { return cmp.Compare(a.Index, b.Index) })
	return cards
}

// unfit tells why the scan thinks that a card cannot be shared.
func unfit(g *machine.GPU) string {
	switch {
	case g.Health.State == machine.Lost || g.Health.State == machine.Unhealthy:
		return strings.TrimSuffix(string(g.Health.State)+": "+g.Health.Reason, ": ")
	case g.MIG.Enabled:
		return "MIG is on"
	}
	return ""
}

// zonesOf numbers the GPUs that NVLinks join, from 1, by place in the machine;
// 0 is joined to none.
func zonesOf(m *machine.Machine) []int {
	zones := make([]int, len(m.GPUs))
	last := 0
	var join func(i int)
	join = func(i int) {
		zones[i] = last
		for j := range m.GPUs {
			if zones[j] == 0 && joined(&m.GPUs[i], &m.GPUs[j]) {
				join(j)
			}
		}
	}
	for i := range m.GPUs {
		alone := !slices.ContainsFunc(m.GPUs, func(g machine.GPU) bool {
			return g.PCI != m.GPUs[i].PCI && joined(&m.GPUs[i], &g)
		})
		if zones[i] == 0 && !alone {
			last++
			join(i)
		}
	}
	return zones
}

// joined tells whether NVLink joins two GPUs, directly or through switches.
func joined(a, b *machine.GPU) bool {
	to := func(g *machine.GPU, peer string) bool {
		return slices.ContainsFunc(g.NVLinks, func(l machine.NVLink) bool { return l.Peer == peer && l.Links > 0 })
	}
	return to(a, b.PCI) || to(b, a.PCI) || to(a, machine.PeerNVSwitch) && to(b, machine.PeerNVSwitch)
}
