package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// Shares reports whether this GPU is shared and not exclusive. One with
// MIG on never is: it is cut in hardware already; nor is one of Others.
func (c *NodeConfig) Shares(g *machine.GPU) bool {
	if c.of(g).Mode != ModeSGPU || g.MIG.Enabled {
		return false
	}
	return len(c.SGPU.GPUs) == 0 ||
		slices.ContainsFunc(c.SGPU.GPUs, func(ref GPURef) bool { return ref.Names(g) })
}

// WithRoles gives the machine with the roles of its HCAs corrected. It is m
// itself if there is nothing to correct; m is never changed.
func (c *NodeConfig) WithRoles(m *machine.Machine) *machine.Machine {
	var hcas []machine.HCA
	for i := range m.HCAs {
		role, _ := c.RDMA.Roles.Of(&m.HCAs[i])
		if role == m.HCAs[i].Role {
			continue
		}
		if hcas == nil {
			hcas = slices.Clone(m.HCAs)
		}
		hcas[i].Role = role
	}
	if hcas == nil {
		return m
	}
	corrected := *m
	corrected.HCAs = hcas
	return &corrected
}

// Of returns the role that the lists give an HCA, or the one it has; named is
// whether a list has it.
func (r *Roles) Of(h *machine.HCA) (role machine.Role, named bool) {
	for _, list := range []struct {
		globs []Glob
		role  machine.Role
	}{
		{r.Fabric, machine.RoleFabric}, {r.Storage, machine.RoleStorage}, {r.Management, machine.RoleManagement},
	} {
		if matchAny(list.globs, h.Name) || h.PCI != "" && matchAny(list.globs, h.PCI) {
			return list.role, true
		}
	}
	return h.Role, false
}

// Select reports whether a resource has this HCA of machine m, which has corrected
// roles, and if not why. A physical function with virtual functions in a
// resource is selected only by its own address: its user could reach their traffic,
// and they share its port.
func (r *RDMA) Select(m *machine.Machine, in *RDMAResource, h *machine.HCA) (selected bool, reason string) {
	if selected, reason = in.Selectors.Select(m, h); !selected || slices.Contains(in.Selectors.PCIAddresses, Glob(h.PCI)) {
		return selected, reason
	}
	for i := range m.HCAs {
		vf := &m.HCAs[i]
		if vf.PhysFn == "" || vf.PhysFn != h.PCI {
			continue
		}
		for j := range r.Resources {
			if of, _ := r.Resources[j].Selectors.Select(m, vf); of {
				return false, fmt.Sprintf("%s has its virtual function %s; pciAddresses: [%q] adds it all the same",
					r.Resources[j].Name, vf.Name, h.PCI)
			}
		}
	}
	return true, ""
}

// Select reports whether selectors choose this HCA of machine m, which has corrected
// roles, and if not which field rejects it.
func (s *Selectors) Select(m *machine.Machine, h *machine.HCA) (selected bool, reason string) {
	if h.Role == machine.RoleNVSwitch {
		return false, "it is a function of an NVSwitch"
	}
	if h.PhysFn != "" && len(s.PCIAddresses) == 0 && len(s.PFNames) == 0 {
		return false, "it is a virtual function, and neither pciAddresses nor pfNames is given"
	}
	for _, test := range s.tests(m, h) {
		if test.given && !test.matches {
			return false, fmt.Sprintf("%s: %s is not among %s", test.field, test.value, test.wanted)
		}
	}
	return true, ""
}

// test is how one field of a selector fared.
type test struct {
	field          string
	given, matches bool
	// value is the HCA's, wanted the selector's.
	value, wanted string
}

func (s *Selectors) tests(m *machine.Machine, h *machine.HCA) []test {
	netdevs, kinds := portsOf(h)
	address := []string{h.PCI}
	sameRole := func(r machine.Role, v string) bool { return string(r) == v }
	return []test{
		compare("vendors", s.Vendors, []string{h.Vendor}, HexID.matches),
		compare("deviceIDs", s.DeviceIDs, []string{h.Device}, HexID.matches),
		compare("drivers", s.Drivers, []string{h.Driver}, Glob.Match),
		compare("ifNames", s.IfNames, netdevs, Glob.Match),
		compare("linkTypes", s.LinkTypes, kinds, func(t, v string) bool { return t == v }),
		compare("pciAddresses", s.PCIAddresses, address, Glob.Match),
		compare("pfNames", s.PFNames, physicalNames(m, h), Glob.Match),
		compare("roles", s.Roles, []string{string(h.Role)}, sameRole),
	}
}

func compare[T ~string](field string, wanted []T, values []string, same func(T, string) bool) test {
	if len(wanted) == 0 {
		return test{field: field}
	}
	t := test{field: field, given: true}
	for _, w := range wanted {
		for _, v := range values {
			t.matches = t.matches || same(w, v)
		}
	}
	words := make([]string, len(wanted))
	for i, w := range wanted {
		words[i] = string(w)
	}
	t.wanted = strings.Join(words, ", ")
	t.value = strings.Join(values, ", ")
	if t.value == "" {
		t.value = "nothing"
	}
	return t
}

func (s *Selectors) empty() bool {
	return len(s.Vendors)+len(s.DeviceIDs)+len(s.Drivers)+len(s.IfNames)+len(s.LinkTypes)+
		len(s.PCIAddresses)+len(s.PFNames)+len(s.Roles) == 0
}

// portsOf returns the network devices of an HCA and the link types of its ports. A port without
// a network device has the type that its link layer would give one.
func portsOf(h *machine.HCA) (netdevs, kinds []string) {
	for i := range h.Ports {
		p := &h.Ports[i]
		for _, n := range p.Netdevs {
			netdevs = append(netdevs, n.Name)
			kinds = append(kinds, n.Type)
		}
		switch {
		case len(p.Netdevs) > 0:
		case p.LinkLayer == machine.Ethernet:
			kinds = append(kinds, "ether")
		case p.LinkLayer == machine.InfiniBand:
			kinds = append(kinds, "infiniband")
		}
	}
	return netdevs, kinds
}

// physicalNames returns the RDMA name and network devices of the physical function
// of a virtual one.
func physicalNames(m *machine.Machine, h *machine.HCA) []string {
	if h.PhysFn == "" {
		return nil
	}
	for i := range m.HCAs {
		if m.HCAs[i].PCI == h.PhysFn {
			netdevs, _ := portsOf(&m.HCAs[i])
			return append([]string{m.HCAs[i].Name}, netdevs...)
		}
	}
	return nil
}

func matchAny(globs []Glob, s string) bool {
	return slices.ContainsFunc(globs, func(g Glob) bool { return g.Match(s) })
}
