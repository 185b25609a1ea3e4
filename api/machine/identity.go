package machine

import "strings"

// HCAIDs are the identities of the HCAs, in the order of m.HCAs: what outlives
// a reboot, a rename and the loss of a neighbor. An identity is the PCI
// address, or without one the node GUID, or without both the RDMA name. One
// function can carry several RDMA devices (a ConnectX-8 has mlx5_0 and smi1):
// those after the first have their name behind the address.
func (m *Machine) HCAIDs() []string {
	ids := make([]string, len(m.HCAs))
	seen := make(map[string]bool, len(m.HCAs))
	for i := range m.HCAs {
		h := &m.HCAs[i]
		id := h.PCI
		if id == "" && strings.Trim(h.NodeGUID, "0:") != "" {
			id = h.NodeGUID
		}
		switch {
		case id == "":
			id = h.Name
		case seen[id]:
			id += "/" + h.Name
		}
		seen[id] = true
		ids[i] = id
	}
	return ids
}
