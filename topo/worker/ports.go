package worker

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// maxGPUs bounds the GPUs of a rail.
const maxGPUs = 16

// Ports lists the cables of a machine, by role, rail and plane, and how many were left out because
// a NodeTopology has no room for them. Functions of NVSwitches have no cable, and virtual functions
// use the cable of their physical one.
//
// Rails are numbered by role, in the order of [affinity.Matrix.RailOrder]. before are the rails
// that the node had: an HCA keeps its number while the node has no more HCAs than then, so that one
// that fell off the bus leaves a gap and does not move its neighbors to other rails. Only this
// differs from [affinity.Rails], which the device plugin uses: it pairs the present devices.
func Ports(m *machine.Machine, before []v1alpha1.Rail) (ports []Port, omitted int) {
	for _, s := range rails(hcasOf(m), before) {
		h := &m.HCAs[s.index]
		for plane, p := range allCables(m, h) {
			if s.rail >= MaxRails || plane >= MaxPlanes || len(ports) == MaxRails {
				omitted++
				continue
			}
			p.ID, p.Rail.Rail, p.Plane, p.GPUs = s.id, int32(s.rail), int32(plane), s.gpus //nolint:gosec // Small.
			ports = append(ports, p)
		}
	}
	return ports, omitted
}

// allCables returns the ends of an HCA's cables, by plane.
func allCables(m *machine.Machine, h *machine.HCA) (all []Port) {
	if smi := smiOf(m, h); smi != nil {
		return planes(h, smi)
	}
	for i := range h.Ports {
		all = append(all, cables(h, &h.Ports[i])...)
	}
	return all
}

// cables returns the ends of the cables in one port: one for each slave under a
// LAG, else one.
func cables(h *machine.HCA, p *machine.Port) []Port {
	one := Port{UMAD: h.CharDevices.UMAD, Virtual: isVF(h), Rail: v1alpha1.Rail{
		Port: int32(p.Number), HCA: h.Name, GUID: h.NodeGUID, Role: string(h.Role), //nolint:gosec // 1 to 255.
		LinkLayer: p.LinkLayer, LinkState: linkState(p.State),
	}}
	if p.LinkLayer == machine.InfiniBand {
		one.Subnet = strings.ReplaceAll(cmp.Or(p.SubnetPrefix, machine.DefaultSubnetPrefix), ":", "")
		one.LID, one.SMLID, one.PKeyIndex = short(p.LID), short(p.SMLID), short(p.PKeyIndex)
	}
	if p.RateGbps != nil && !math.IsNaN(*p.RateGbps) {
		one.RateGbps = int32(math.Round(min(max(*p.RateGbps, 0), math.MaxInt32)))
	}
	if len(h.BondSlaves) == 0 {
		for _, n := range p.Netdevs {
			if n.Type == "ether" {
				one.Netdevs = append(one.Netdevs, n.Name)
			}
		}
		return []Port{one}
	}
	all := make([]Port, 0, len(h.BondSlaves))
	for _, slave := range h.BondSlaves {
		one.Netdev, one.Netdevs = slave, []string{slave}
		all = append(all, one)
	}
	return all
}

// short parses a 16-bit number; it returns 0 for anything else, such as Omni-Path's long LIDs.
func short(n int) uint16 {
	if n < 0 || n > math.MaxUint16 {
		return 0
	}
	return uint16(n)
}

func linkState(state string) v1alpha1.LinkState {
	switch state {
	case machine.PortActive:
		return v1alpha1.LinkActive
	case machine.PortArmed:
		return v1alpha1.LinkArmed
	case machine.PortInit:
		return v1alpha1.LinkInit
	case machine.PortDown:
		return v1alpha1.LinkDown
	}
	return v1alpha1.LinkUnknown
}

// hca is one HCA's place among the HCAs of its role.
type hca struct {
	index int
	id    string
	role  machine.Role
	gpus  []string
	rail  int
}

// hcasOf lists the HCAs that have cables of their own, in the order of rails.
func hcasOf(m *machine.Machine) (all []hca) {
	matrix := affinity.Of(m)
	ids := m.HCAIDs()
	for _, at := range matrix.RailOrder() {
		d := matrix.Devices[at]
		if d.Role == machine.RoleNVSwitch || m.HCAs[d.Index].PhysFn != "" || isSMI(m, &m.HCAs[d.Index]) {
			continue
		}
		s := hca{index: d.Index, id: ids[d.Index], role: d.Role}
		if near, class := matrix.Nearest(at, affinity.IsGPU); class.Kind != affinity.Unknown {
			for _, g := range near[:min(len(near), maxGPUs)] {
				s.gpus = append(s.gpus, m.GPUs[matrix.Devices[g].Index].UUID)
			}
		}
		all = append(all, s)
	}
	return all
}

// rails numbers the HCAs of each role, and sorts them by role and rail.
func rails(all []hca, before []v1alpha1.Rail) []hca {
	type place struct {
		role machine.Role
		rail int
	}
	type device struct {
		role machine.Role
		id   string
	}
	known, had, have := map[device]int{}, map[machine.Role]int{}, map[machine.Role]int{}
	for i := range before {
		b := device{machine.Role(before[i].Role), before[i].ID}
		if _, twice := known[b]; !twice {
			known[b] = int(before[i].Rail)
			had[b.role] = max(had[b.role], known[b]+1)
		}
	}
	for i := range all {
		have[all[i].role]++
	}
	taken := map[place]bool{}
	for i := range all {
		h := &all[i]
		rail, ok := known[device{h.role, h.id}]
		// No number is certain on a node that has grown.
		if !ok || have[h.role] > had[h.role] || taken[place{h.role, rail}] {
			rail = -1
		}
		h.rail = rail
		taken[place{h.role, rail}] = true
	}
	for i := range all {
		h := &all[i]
		if h.rail >= 0 {
			continue
		}
		h.rail = 0
		for taken[place{h.role, h.rail}] {
			h.rail++
		}
		taken[place{h.role, h.rail}] = true
	}
	slices.SortStableFunc(all, func(a, b hca) int {
		return cmp.Or(cmp.Compare(a.role, b.role), cmp.Compare(a.rail, b.rail))
	})
	return all
}
