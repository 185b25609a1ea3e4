package rdma

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/discovery/capacity"
)

// AllHCAs stands in for the HCA in the tickets of a resource with count all:
// such a ticket is worth every HCA of the resource.
const AllHCAs = "all"

// separator is between the HCA and the slot of a ticket. PCI addresses and
// GUIDs have single colons.
const separator = "::"

// Ticket is the device ID of one slot of an HCA, which is named as in
// [machine.Machine.HCAIDs].
func Ticket(hca string, slot int) string { return hca + separator + strconv.Itoa(slot) }

// ParseTicket is the reverse of [Ticket].
func ParseTicket(id string) (hca string, slot int, err error) {
	at := strings.LastIndex(id, separator)
	if at <= 0 {
		return "", 0, fmt.Errorf("device ID %q is no HCA and slot, such as 0000:18:00.0::3", id)
	}
	slot, err = strconv.Atoi(id[at+len(separator):])
	if err != nil || slot < 0 || strconv.Itoa(slot) != id[at+len(separator):] {
		return "", 0, fmt.Errorf("device ID %q has no slot number after %q", id, separator)
	}
	return id[:at], slot, nil
}

// Member is an HCA that a resource is made of.
type Member struct {
	// Index is its place in the machine's HCAs, ID its identity.
	Index int
	ID    string
	// Against says why it cannot be handed out now; empty if it can.
	Against string
}

// Members are the HCAs of resource r, in the order of m.HCAs, whose roles are
// corrected; against is the health of an HCA, nil for what the scan shows.
func Members(m *machine.Machine, r *config.RDMAResource, against func(*machine.HCA) string) []Member {
	if against == nil {
		against = capacity.PortsDown
	}
	ids := m.HCAIDs()
	var members []Member
	for i := range m.HCAs {
		h := &m.HCAs[i]
		if selected, _ := r.Selectors.Select(m, h); !selected {
			continue
		}
		members = append(members, Member{Index: i, ID: ids[i], Against: capacity.Unhealthy(h, against(h))})
	}
	return members
}

// MembersOf are the HCAs of resource r, in the order of m.HCAs, with the health
// that the inventory has of them.
func MembersOf(inv *inventory.Inventory, m *machine.Machine, r *config.RDMAResource) []Member {
	if inv.HCAs == nil {
		return Members(m, r, nil)
	}
	return Members(m, r, inv.HCAUnhealthy)
}
