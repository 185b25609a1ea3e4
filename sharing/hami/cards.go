package hami

import (
	"cmp"
	"slices"

	"github.com/heddle-dev/heddle/api/allocation"
)

// wholeCard is a card's compute in HAMi's unit, percent.
const wholeCard = 100

// Card is one shared card and what is left of it.
type Card struct {
	UUID string
	// BDF is the PCI address, Model the product's name; "" is unknown.
	BDF, Model string
	// Index orders the cards.
	Index     int
	MemoryMiB int64
	// Slots is how many containers can share it.
	Slots int
	// NUMA is -1 if it is not known, Zone the NVLink zone, 0 if in none.
	NUMA, Zone int
	// Healthy is false if nobody new gets it, for whatever reason.
	Healthy bool
	// Tenants, VCore and UsedMiB are taken, Policy is what the tenants have.
	Tenants, VCore int
	UsedMiB        int64
	Policy         string
	// Exclusive: the tenant has all of its compute, and so no policy in HAMi's
	// eyes.
	Exclusive bool
}

// Cards is names.HAMiCards: the cards by Index, which HAMi takes their places
// for. None of them is healthy unless open is true.
func Cards(cards []Card, open bool) string {
	sorted := slices.SortedStableFunc(slices.Values(cards), func(a, b Card) int { return cmp.Compare(a.Index, b.Index) })
	list := make(allocation.HAMiNode, 0, len(sorted))
	for i := range sorted {
		list = append(list, entry(&sorted[i], open))
	}
	return list.String()
}

func entry(c *Card, open bool) allocation.HAMiCard {
	one := allocation.HAMiCard{
		UUID: c.UUID, BDF: c.BDF, Model: c.Model,
		TotalDevCount: c.Slots, TotalCompute: wholeCard, TotalVRam: c.MemoryMiB,
		AvailableDevCount: max(c.Slots-c.Tenants, 0), AvailableCompute: max(wholeCard-c.VCore, 0),
		AvailableVRam: max(c.MemoryMiB-c.UsedMiB, 0),
		NUMA:          c.NUMA, Healthy: c.Healthy && open, LinkZone: c.Zone,
	}
	if c.Tenants > 0 && !c.Exclusive {
		one.QoSPolicy = c.Policy
	}
	return one
}

// alike tells whether two annotations differ in what is left of cards only,
// which HAMi does not read: it counts pods.
func alike(a, b string) bool {
	x, errX := allocation.ParseHAMiNode(a)
	y, errY := allocation.ParseHAMiNode(b)
	return errX == nil && errY == nil && slices.EqualFunc(x, y, func(m, n allocation.HAMiCard) bool {
		m.AvailableDevCount, m.AvailableCompute, m.AvailableVRam = 0, 0, 0
		n.AvailableDevCount, n.AvailableCompute, n.AvailableVRam = 0, 0, 0
		return m == n
	})
}
