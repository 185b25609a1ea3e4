// Package gpu hands out GPUs: whole cards and MIG devices, by UUID.
//
// It says which GPUs a resource is made of, which of them go together, and what
// a container needs to use them: the CDI devices of the driver's static spec,
// which it writes (cdi.go), or the environment that older runtimes read. A
// device ID is a UUID and means that very GPU; what else a container gets beside
// its GPUs is the binder's. Cards that are handed out in shares are not its own.
//
// Its calls read an immutable snapshot, which [Resource.Refresh] makes anew:
// none of them waits for hardware. It opens no GPU; the one thing here that
// asks the driver is [NVCDI], when a spec must be written.
package gpu

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

// Names lists the resources of the node's GPUs: whole GPUs first, whether there are
// any or not, then one for every MIG profile under strategy mixed.
func Names(inv *inventory.Inventory) []string {
	profiles := map[string]bool{}
	for i := range inv.Machine.GPUs {
		for _, card := range cardsOf(inv, i) {
			if card.resource != inv.Config.Resources.GPU {
				profiles[card.resource] = true
			}
		}
	}
	return append([]string{inv.Config.Resources.GPU}, slices.Sorted(maps.Keys(profiles))...)
}

// card is a GPU or a MIG device that a container can have.
type card struct {
	id       string
	resource string
	// gpu is the place in the machine's GPUs of the card, or of what it was
	// cut from; instance tells the two apart.
	gpu      int
	instance bool
	// against says why it cannot be handed out, as far as the scan knows.
	against string
}

// cardsOf lists what the GPU at an index is handed out as: itself, its MIG
// devices, or nothing if it is shared. Where no card is on its way from one
// mode to the other it agrees with discovery/capacity.
func cardsOf(inv *inventory.Inventory, index int) []card {
	g, c := &inv.Machine.GPUs[index], inv.Config
	withheld := inv.GPUs[g.UUID].Unavailable
	switch {
	case inv.GPUs[g.UUID].Mode != config.ModeNative:
		return nil
	case !g.MIG.Enabled || c.MIG.Strategy == config.MIGNone || len(g.MIG.Devices) == 0:
		return []card{{id: g.UUID, resource: c.Resources.GPU, gpu: index, against: cmp.Or(unfit(g), withheld)}}
	}
	var cards []card
	against := cmp.Or(condition(g), withheld)
	for i := range g.MIG.Devices {
		d := &g.MIG.Devices[i]
		resource := c.Resources.GPU
		if c.MIG.Strategy == config.MIGMixed {
			resource = c.Domains.MIGResource(d.Profile)
		}
		cards = append(cards, card{id: d.UUID, resource: resource, gpu: index, instance: true, against: against})
	}
	return cards
}

// condition tells why a GPU cannot be used at all.
func condition(g *machine.GPU) string {
	switch g.Health.State {
	case machine.Lost, machine.Unhealthy:
		return strings.TrimSuffix(string(g.Health.State)+": "+g.Health.Reason, ": ")
	case machine.Healthy:
	}
	return ""
}

// unfit tells why a GPU cannot be handed out as a card.
func unfit(g *machine.GPU) string {
	reason := condition(g)
	switch {
	case reason != "" || !g.MIG.Enabled:
		return reason
	case len(g.MIG.Devices) == 0:
		return "MIG is on, and there are no MIG devices"
	}
	return "MIG is on, and mig.strategy is none"
}
