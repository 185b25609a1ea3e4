package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// Shares reports whether this GPU is shared and not exclusive. One with
// MIG on never is: it is cut in hardware already; nor is one of Others.
func (c *NodeConfig) Shares(g *machine.GPU) bool {
	return c.of(g).Mode == ModeSGPU && !g.MIG.Enabled && named(c.SGPU.GPUs, g) && !c.Claimable(g)
}

// Claimable reports whether pods get this GPU, or its MIG devices, by ResourceClaims.
func (c *NodeConfig) Claimable(g *machine.GPU) bool {
	return c.of(g).UsesClaims() && named(c.Claims.GPUs, g)
}

// UsesClaims reports whether some GPUs, or all, are for ResourceClaims.
func (c *NodeConfig) UsesClaims() bool { return c.Mode == ModeClaims || len(c.Claims.GPUs) > 0 }

// named reports whether a list has a GPU; an empty list has all.
func named(list []GPURef, g *machine.GPU) bool {
	return len(list) == 0 || slices.ContainsFunc(list, func(ref GPURef) bool { return ref.Names(g) })
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

// Resource returns the resource of a name, or nil.
func (r *RDMA) Resource(name string) *RDMAResource {
	at := slices.IndexFunc(r.Resources, func(x RDMAResource) bool { return x.Name == name })
	if at < 0 {
		return nil
	}
	return &r.Resources[at]
}

// Select reports whether a resource has this HCA of machine m, which has corrected
// roles, and if not why. A physical function with virtual functions in a
// resource is selected only by its own address: its user could reach their traffic,
// and they share its port.
func (r *RDMA) Select(m *machine.Machine, in *RDMAResource, h *machine.HCA) (selected bool, reason string) {
	reason = in.Selectors.rejects(m, h)
	if reason != "" || slices.Contains(in.Selectors.PCIAddresses, Glob(h.PCI)) {
		return reason == "", reason
	}
	for i := range m.HCAs {
		vf := &m.HCAs[i]
		if vf.PhysFn == "" || vf.PhysFn != h.PCI {
			continue
		}
		for j := range r.Resources {
			if r.Resources[j].Selectors.rejects(m, vf) == "" {
				return false, fmt.Sprintf("%s has its virtual function %s; pciAddresses: [%q] adds it all the same",
					r.Resources[j].Name, vf.Name, h.PCI)
			}
		}
	}
	return true, ""
}

// rejects returns why selectors do not choose this HCA of machine m, which has corrected
// roles; empty if they do.
func (s *Selectors) rejects(m *machine.Machine, h *machine.HCA) string {
	if h.Role == machine.RoleNVSwitch {
		return "it is a function of an NVSwitch"
	}
	if h.PhysFn != "" && len(s.PCIAddresses) == 0 && len(s.PFNames) == 0 {
		return "it is a virtual function, and neither pciAddresses nor pfNames is given"
	}
	netdevs, kinds := portsOf(h)
	return cmp.Or(
		mismatch("vendors", s.Vendors, []string{h.Vendor}, HexID.matches),
		mismatch("deviceIDs", s.DeviceIDs, []string{h.Device}, HexID.matches),
		mismatch("drivers", s.Drivers, []string{h.Driver}, Glob.Match),
		mismatch("ifNames", s.IfNames, netdevs, Glob.Match),
		mismatch("linkTypes", s.LinkTypes, kinds, func(t, v string) bool { return t == v }),
		mismatch("pciAddresses", s.PCIAddresses, []string{h.PCI}, Glob.Match),
		mismatch("pfNames", s.PFNames, physicalNames(m, h), Glob.Match),
		mismatch("roles", s.Roles, []string{string(h.Role)}, func(r machine.Role, v string) bool { return string(r) == v }),
	)
}

// mismatch returns why a field rejects an HCA with these values; empty if it does not, or is not given.
func mismatch[T ~string](field string, wanted []T, values []string, same func(T, string) bool) string {
	words := make([]string, len(wanted))
	for i, w := range wanted {
		if slices.ContainsFunc(values, func(v string) bool { return same(w, v) }) {
			return ""
		}
		words[i] = string(w)
	}
	if len(wanted) == 0 {
		return ""
	}
	value := cmp.Or(strings.Join(values, ", "), "nothing")
	return fmt.Sprintf("%s: %s is not among %s", field, value, strings.Join(words, ", "))
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
