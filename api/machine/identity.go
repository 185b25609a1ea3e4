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

// ParentGPU is the UUID of the GPU that a MIG device is a part of, "" if no GPU
// of the machine has that device. It may be called on nil.
func (m *Machine) ParentGPU(mig string) string {
	if m == nil {
		return ""
	}
	for i := range m.GPUs {
		for j := range m.GPUs[i].MIG.Devices {
			if m.GPUs[i].MIG.Devices[j].UUID == mig {
				return m.GPUs[i].UUID
			}
		}
	}
	return ""
}
