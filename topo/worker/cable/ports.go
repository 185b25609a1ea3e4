package cable

import (
	"cmp"
	"math"
	"slices"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// The bounds of a NodeTopology.
const (
	maxRails  = 128
	maxPlanes = 16
	maxGPUs   = 16
)

// Ports lists the cables of a machine, by role, rail and plane, and how many
// were left out because a NodeTopology has no room for them. Functions of
// NVSwitches have no cable, and virtual functions have that of their physical
// one.
//
// Rails are numbered by role, in the order of [affinity.Matrix.RailOrder].
// before are the rails that the node had: an HCA keeps its number while the
// node has no more HCAs than then, so that one that fell off the bus leaves a
// gap and does not move its neighbors to other rails. That alone is different
// from [affinity.Rails], which the device plugin goes by: it pairs what is
// there now.
func Ports(m *machine.Machine, before []v1alpha1.Rail) (ports []Port, omitted int) {
	for _, s := range rails(seats(m), before) {
		h := &m.HCAs[s.hca]
		plane := 0
		for i := range h.Ports {
			for _, p := range cables(h, &h.Ports[i]) {
				p.ID, p.Rail, p.Plane, p.GPUs = s.id, s.rail, plane, s.gpus
				plane++
				if p.Rail >= maxRails || p.Plane >= maxPlanes || len(ports) == maxRails {
					omitted++
					continue
				}
				ports = append(ports, p)
			}
		}
	}
	return ports, omitted
}

// cables are the cables of one port: one for each slave under a LAG, else one.
func cables(h *machine.HCA, p *machine.Port) []Port {
	one := Port{
		Key: Key{Port: p.Number}, HCA: h.Name, GUID: h.NodeGUID, Role: h.Role,
		LinkLayer: p.LinkLayer, State: p.State, UMAD: h.CharDevices.UMAD,
	}
	if p.RateGbps != nil && !math.IsNaN(*p.RateGbps) {
		one.Gbps = min(max(*p.RateGbps, 0), math.MaxInt32)
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

// seat is one HCA's place among those of its role.
type seat struct {
	hca  int
	id   string
	role machine.Role
	gpus []string
	rail int
}

// seats lists the HCAs that have cables of their own, by role and in the order
// of rails.
func seats(m *machine.Machine) []seat {
	matrix := affinity.Of(m)
	ids := m.HCAIDs()
	var all []seat
	for _, at := range matrix.RailOrder() {
		d := matrix.Devices[at]
		if d.Role == machine.RoleNVSwitch || m.HCAs[d.Index].PhysFn != "" {
			continue
		}
		s := seat{hca: d.Index, id: ids[d.Index], role: d.Role}
		if near, class := matrix.Nearest(at, affinity.IsGPU); class.Kind != affinity.Unknown {
			for _, g := range near[:min(len(near), maxGPUs)] {
				s.gpus = append(s.gpus, m.GPUs[matrix.Devices[g].Index].UUID)
			}
		}
		all = append(all, s)
	}
	slices.SortStableFunc(all, func(a, b seat) int { return cmp.Compare(a.role, b.role) })
	return all
}

// rails numbers the seats.
func rails(all []seat, before []v1alpha1.Rail) []seat {
	var out []seat
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].role == all[0].role {
			n++
		}
		number(all[:n], before)
		out = append(out, all[:n]...)
		all = all[n:]
	}
	slices.SortStableFunc(out, func(a, b seat) int {
		return cmp.Or(cmp.Compare(a.role, b.role), cmp.Compare(a.rail, b.rail))
	})
	return out
}

// number gives the HCAs of one role their rails.
func number(group []seat, before []v1alpha1.Rail) {
	known := map[string]int{}
	count := 0
	for i := range before {
		b := &before[i]
		if _, twice := known[b.ID]; b.Role == string(group[0].role) && !twice {
			known[b.ID] = int(b.Rail)
			count = max(count, int(b.Rail)+1)
		}
	}
	if len(group) > count {
		known = nil // The node has grown: nobody's number is certain.
	}
	taken := map[int]bool{}
	for i := range group {
		rail, ok := known[group[i].id]
		if ok = ok && !taken[rail]; ok {
			taken[rail] = true
		} else {
			rail = -1
		}
		group[i].rail = rail
	}
	next := 0
	for i := range group {
		if group[i].rail >= 0 {
			continue
		}
		for taken[next] {
			next++
		}
		group[i].rail = next
		taken[next] = true
	}
}
