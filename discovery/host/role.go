package host

import (
	"cmp"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/sysfs"
)

// assignRoles decides what every HCA is for. In order:
//
//  1. Soft RDMA is virtual. A Mellanox function with vital product data that names
//     it the management of an NVSwitch is nvswitch. An RDMA device without
//     verbs, on a function with another one that has them, is management
//     (ConnectX-8's second plane). A virtual function has the role of its
//     physical one.
//  2. Ethernet of at most 25 Gb/s is management, and so is a node's ordinary
//     network where it has no other. Second ports that no node of this sort
//     has a cable in are storage: see [dropUncabled].
//  3. If at least half of the GPUs share a PCIe switch with an HCA that is
//     left, the fabric are HCAs next to GPUs: see [nextToGPUs]. Nearness is
//     how the machine was built; kind, speed and name are how it is used today.
//  4. Virtual machines and Grace have no common switches: there the kind and
//     the speed decide, see [byKindAndSpeed].
//  5. Everything else is storage.
//
// seen are the best rates that the HCAs' ports had while they were up, in the
// order of m.HCAs: a port that is down decides nothing. vpd are vital product
// data by address.
func assignRoles(m *machine.Machine, seen []float64, vpd map[string]sysfs.VPD, vendors gpu.Vendors) {
	withVerbs := map[string]bool{}
	for i := range m.HCAs {
		if h := &m.HCAs[i]; len(h.CharDevices.UVerbs) > 0 {
			withVerbs[h.PCI] = true
		}
	}
	var all []*candidate
	for i := range m.HCAs {
		h := &m.HCAs[i]
		switch {
		case h.Virtual:
			h.Role = machine.RoleVirtual
		case h.Vendor == sysfs.VendorMellanox && vpd[h.PCI].SwitchManagement:
			h.Role = machine.RoleNVSwitch
		case h.PCI != "" && len(h.CharDevices.UVerbs) == 0 && withVerbs[h.PCI]:
			h.Role = machine.RoleManagement
		default:
			all = append(all, newCandidate(h, seen[i]))
		}
	}
	setSpeeds(all)
	physical := map[string]*machine.HCA{}
	for _, c := range all {
		physical[c.hca.PCI] = c.hca
		c.hca.Role = machine.RoleStorage
		if c.slow() {
			c.hca.Role = machine.RoleManagement
		}
	}
	delete(physical, "")
	for _, c := range fabricOf(m, all, physical, vendors) {
		c.hca.Role = machine.RoleFabric
	}
	for _, c := range all {
		if pf := physical[c.hca.PhysFn]; pf != nil {
			c.hca.Role = pf.Role
		}
	}
}

func fabricOf(
	m *machine.Machine, all []*candidate, physical map[string]*machine.HCA, vendors gpu.Vendors,
) []*candidate {
	eligible := slices.DeleteFunc(slices.Clone(all), func(c *candidate) bool {
		return c.slow() || physical[c.hca.PhysFn] != nil
	})
	eligible = dropUncabled(eligible)
	if fabric, near := nextToGPUs(m, eligible, vendors); near {
		return fabric
	}
	return byKindAndSpeed(eligible)
}

// candidate is an HCA that the fabric could consist of.
type candidate struct {
	hca *machine.HCA
	sort
	// up is whether a port is up or was; rate is the best one then, and gbps
	// the speed of the model, both in 10^9 bits a second; 0 is unknown.
	up         bool
	rate, gbps float64
}

// sort has the properties that HCAs of one fabric have in common.
type sort struct {
	model
	infiniBand bool
}

// model has the properties that HCAs of one speed have in common. A virtual function has its
// own device number, a bond its own speed.
type model struct {
	vendor, device, hcaType string
	bond                    bool
}

func newCandidate(h *machine.HCA, seen float64) *candidate {
	bond := len(h.BondSlaves) > 0 || strings.Contains(h.Name, "bond")
	return &candidate{
		hca: h, up: seen > 0, rate: seen,
		sort: sort{model{h.Vendor, h.Device, h.Type, bond}, isInfiniBand(h)},
	}
}

// isInfiniBand goes by the ports that are up, if any is: of a ConnectX-3 (VPI),
// one port can be InfiniBand and the other Ethernet.
func isInfiniBand(h *machine.HCA) bool {
	up := slices.ContainsFunc(h.Ports, isUp)
	return slices.ContainsFunc(h.Ports, func(p machine.Port) bool {
		return p.LinkLayer == machine.InfiniBand && (isUp(p) || !up)
	})
}

func isUp(p machine.Port) bool { return p.State != machine.PortDown && p.State != "" }

// managementGbps is the fastest that is for operators only, in 10^9 bits a
// second.
const managementGbps = 25

// slow reports whether the HCA is known to be for operators.
func (c *candidate) slow() bool { return !c.infiniBand && c.gbps > 0 && c.gbps <= managementGbps }

// better orders sorts: those with a link first, then InfiniBand, the faster
// ones, NICs before DPUs, and single ports before bonds.
func better(a, b *candidate) int {
	return cmp.Or(compareBool(a.up, b.up), compareBool(a.infiniBand, b.infiniBand), cmp.Compare(b.gbps, a.gbps),
		compareBool(b.isDPU(), a.isDPU()), compareBool(b.bond, a.bond))
}

// compareBool puts true first.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// dropUncabled drops the further functions of adapters if none of their sort is
// or was up, and the first function of each is: two-port adapters with one
// port is used. One port that is down among others that are up is a fault.
func dropUncabled(all []*candidate) []*candidate {
	first, used := map[string]bool{}, map[sort]bool{}
	for _, c := range all {
		if slot, function := splitFunction(c.hca.PCI); function == "0" {
			first[slot] = c.up
		} else if c.up {
			used[c.sort] = true
		}
	}
	return slices.DeleteFunc(all, func(c *candidate) bool {
		slot, function := splitFunction(c.hca.PCI)
		return function != "0" && !c.up && !used[c.sort] && first[slot]
	})
}

// splitFunction cuts 0000:18:00.1 at the dot: adapter and function.
func splitFunction(pci string) (slot, function string) {
	slot, function, _ = strings.Cut(pci, ".")
	return slot, function
}

// byKindAndSpeed keeps the HCAs of the fabric's kind that are as fast as any of
// them. That is InfiniBand if one is up, or if they are as many as the others;
// single ports if there are any, else bonds; and DPUs only if there is nothing
// else.
func byKindAndSpeed(all []*candidate) []*candidate {
	infiniBand, up := 0, false
	for _, c := range all {
		if c.infiniBand {
			infiniBand++
			up = up || c.up
		}
	}
	kind := infiniBand > 0 && (up || 2*infiniBand >= len(all))
	all = slices.DeleteFunc(all, func(c *candidate) bool { return c.infiniBand != kind || !kind && c.gbps == 0 })
	all = dropIfOthers(all, func(c *candidate) bool { return c.bond })
	var best float64
	for _, c := range all {
		best = max(best, c.gbps)
	}
	all = slices.DeleteFunc(all, func(c *candidate) bool { return c.gbps < best })
	return dropIfOthers(all, (*candidate).isDPU)
}

// dropIfOthers drops those that match unless all do.
func dropIfOthers(all []*candidate, match func(*candidate) bool) []*candidate {
	if slices.ContainsFunc(all, func(c *candidate) bool { return !match(c) }) {
		return slices.DeleteFunc(all, match)
	}
	return all
}

// setSpeeds gives every candidate the best rate that a port of its model has or
// had while it was up, or else what the model can do: a port that is down reads
// its lowest speed.
func setSpeeds(all []*candidate) {
	speeds := map[model]float64{}
	for _, c := range all {
		speeds[c.model] = max(speeds[c.model], c.rate)
	}
	for _, c := range all {
		if c.gbps = speeds[c.model]; c.gbps == 0 {
			c.gbps = nominalGbps(c.hca)
		}
	}
}

// upRate returns the best rate of an HCA's ports that are up, 0 if none is.
func upRate(h *machine.HCA) float64 {
	var best float64
	for _, p := range h.Ports {
		if p.RateGbps != nil && isUp(p) {
			best = max(best, *p.RateGbps)
		}
	}
	return best
}

// nominalGbps returns the highest rate of a model, by PCI vendor and device number
// (pci.ids; data sheets); 0 if unknown.
func nominalGbps(h *machine.HCA) float64 {
	return map[string]float64{
		"0x15b3 0x1003": 56, "0x15b3 0x1007": 56, // ConnectX-3, -3 Pro
		"0x15b3 0x1013": 100, "0x15b3 0x1017": 100, "0x15b3 0x1019": 100, // ConnectX-4, -5, -5 Ex
		"0x15b3 0x1015": 25, "0x15b3 0x101f": 25, // ConnectX-4 Lx, -6 Lx
		"0x15b3 0x101b": 200, "0x15b3 0x101d": 200, "0x15b3 0xa2d6": 200, // ConnectX-6, -6 Dx, BlueField-2
		"0x15b3 0x1021": 400, "0x15b3 0xa2dc": 400, // ConnectX-7, BlueField-3
		"0x15b3 0x1023": 800, // ConnectX-8
		"0x14e4 0x16d7": 25,  // BCM57414
		"0x14e4 0x1750": 200, // BCM57508 (Thor)
		"0x14e4 0x1760": 400, // BCM57608 (Thor 2)
		"0x8086 0x1592": 100, // E810-C
		"0x8086 0x159b": 25,  // E810-XXV
	}[h.Vendor+" "+h.Device]
}

// isDPU: BlueFields are 0xa2d2, 0xa2d6, 0xa2dc and 0xa2df (pci.ids). As SuperNICs they
// are rails like any NIC, and as DPUs they carry storage at the same speed.
func (c *candidate) isDPU() bool {
	return c.vendor == sysfs.VendorMellanox && strings.HasPrefix(c.device, "0xa2d")
}
