package allocate

import (
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

// HCAs returns the HCAs that claims may have: those of the resources of HCAs, in the order of the machine. An
// HCA of a resource with one sharer is not among them, since CNI plugins move it into the network of the pod
// that has it by the device plugin.
func HCAs(inv *inventory.Inventory) []Member {
	m := inv.Config.WithRoles(inv.Machine)
	known, alone := make([]*Member, len(m.HCAs)), make([]bool, len(m.HCAs))
	for i := range inv.Config.RDMA.Resources {
		r := &inv.Config.RDMA.Resources[i]
		for _, member := range Members(inv, m, r) {
			known[member.Index] = &member
			alone[member.Index] = alone[member.Index] || r.Sharers == 1
		}
	}
	var all []Member
	for i, member := range known {
		if member != nil && !alone[i] {
			all = append(all, *member)
		}
	}
	return all
}

// Pairs returns the HCA that a container with one GPU and one HCA would get, by the GPU's place in the machine.
// HCAs whose ports are down count, so that a pair never changes.
func Pairs(inv *inventory.Inventory) map[int]Member {
	t, members := newTopology(inv.Config.WithRoles(inv.Machine)), HCAs(inv)
	byIndex, among := map[int]Member{}, make([]int, len(members))
	for i, member := range members {
		byIndex[member.Index], among[i] = member, member.Index
	}
	pairs := map[int]Member{}
	for i := range t.machine.GPUs {
		for _, p := range t.choose(&hcaRequest{n: 1, gpus: []int{i}, among: among}) {
			pairs[i] = byIndex[p.hca]
		}
	}
	return pairs
}
