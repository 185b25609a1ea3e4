package allocate

import (
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/discovery/capacity"
)

// AllHCAs stands in for the HCA in the device IDs of a resource with count all:
// such an ID is worth every HCA of the resource.
const AllHCAs = "all"

// Member is an HCA that a resource is made of.
type Member struct {
	// Index is its place in the machine's HCAs, ID its identity.
	Index int
	ID    string
	// Unhealthy is why it cannot be handed out now; empty if it can.
	Unhealthy string
}

// Members are the HCAs of resource r, in the order of m.HCAs, whose roles are
// corrected, with the health that the inventory has of them.
func Members(inv *inventory.Inventory, m *machine.Machine, r *config.RDMAResource) []Member {
	ids := m.HCAIDs()
	var members []Member
	for i := range m.HCAs {
		h := &m.HCAs[i]
		if selected, _ := r.Selectors.Select(m, h); selected {
			members = append(members, Member{Index: i, ID: ids[i], Unhealthy: unhealthy(inv, h)})
		}
	}
	return members
}

// unhealthy is why an HCA cannot be handed out now; empty if it can.
func unhealthy(inv *inventory.Inventory, h *machine.HCA) string {
	if inv.HCAs == nil {
		return capacity.Unhealthy(h, nil)
	}
	return capacity.Unhealthy(h, inv.HCAUnhealthy)
}
