package checks

import (
	"cmp"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// roleCheck has the facts that the roles of a machine's HCAs are checked against.
type roleCheck struct {
	m   *machine.Machine
	set *config.Roles
	// near are the GPUs that share a PCIe switch with each HCA, in the order of
	// m.HCAs; switches is whether any does.
	near     []string
	switches bool
	// layer and model are the most common ones in the fabric, or empty.
	layer, model string
	// rate is the lowest of the fabric's active ports, 0 for none.
	rate float64
}

// Roles explains a fabric that is not where the GPUs are, and roles that were a
// close call, with the setting that decides them. m has its roles corrected by
// set; of HCAs that set names, nothing is a close call.
func (l *List) Roles(m *machine.Machine, set *config.Roles) {
	c := newRoleCheck(m, set)
	var fabric, far, near []string
	for i := range m.HCAs {
		h := &m.HCAs[i]
		switch {
		case h.PhysFn != "":
		case h.Role == machine.RoleFabric:
			fabric = append(fabric, h.Name)
			if c.near[i] == "" {
				far = append(far, h.Name)
			}
			l.rail(c, i)
		case h.Role == machine.RoleStorage:
			if c.near[i] != "" {
				near = append(near, h.Name)
			}
			l.otherThanRail(c, i)
		}
	}
	if len(fabric) > 0 && len(far) == len(fabric) && len(near) > 0 {
		add := l.Problem
		if c.named(fabric) {
			add = l.Note
		}
		add("fabric HCAs", "If those next to GPUs are the rails: rdma.roles.fabric: ["+strings.Join(near, ", ")+"].",
			"none of %s shares a PCIe switch with a GPU, while %s of role storage do",
			strings.Join(fabric, ", "), strings.Join(near, ", "))
	}
}

func newRoleCheck(m *machine.Machine, set *config.Roles) *roleCheck {
	c := &roleCheck{m: m, set: set, near: make([]string, len(m.HCAs))}
	x := affinity.Of(m)
	for at, d := range x.Devices {
		gpus, class := x.Nearest(at, affinity.IsGPU)
		if d.GPU || len(gpus) == 0 || class.Kind < affinity.PXB {
			continue
		}
		var names []string
		for _, g := range gpus {
			names = append(names, x.Devices[g].Name)
		}
		c.near[d.Index] = strings.Join(names, ", ")
		c.switches = true
	}
	layers, models := map[string]int{}, map[string]int{}
	for i := range m.HCAs {
		h := &m.HCAs[i]
		if h.Role != machine.RoleFabric || h.PhysFn != "" {
			continue
		}
		layers[layerOf(h)]++
		models[modelOf(h)]++
		if rate := activeRate(h); rate > 0 && (c.rate == 0 || rate < c.rate) {
			c.rate = rate
		}
	}
	c.layer, c.model = mostOf(layers), mostOf(models)
	return c
}

// named reports whether the configuration names all of these HCAs.
func (c *roleCheck) named(names []string) bool {
	return !slices.ContainsFunc(c.m.HCAs, func(h machine.HCA) bool {
		_, named := c.set.Of(&h)
		return slices.Contains(names, h.Name) && !named
	})
}

// rail explains a fabric HCA that is not like the others.
func (l *List) rail(c *roleCheck, i int) {
	h := &c.m.HCAs[i]
	if _, named := c.set.Of(h); named {
		return
	}
	remedy := "rdma.roles.storage: [" + h.Name + "] takes it out of the fabric."
	switch layer, model := layerOf(h), modelOf(h); {
	case c.layer != "" && layer != c.layer:
		l.Problem(h.Name, "mlxconfig -d "+h.PCI+" query LINK_TYPE_P1 shows the mode of its port, and set changes it. "+remedy,
			"is %s, where most HCAs of the fabric are %s: it is a rail because it is next to %s", layer, c.layer, c.place(i))
	case c.model != "" && model != c.model:
		l.Note(h.Name, remedy, "is %s, where most HCAs of the fabric are %s: it is a rail because it is next to %s",
			model, c.model, c.place(i))
	}
}

// otherThanRail explains a storage HCA that could be of the fabric: as fast as
// it, and as near to GPUs.
func (l *List) otherThanRail(c *roleCheck, i int) {
	h := &c.m.HCAs[i]
	if _, named := c.set.Of(h); named || c.rate == 0 || activeRate(h) < c.rate || c.switches && c.near[i] == "" {
		return
	}
	l.Note(h.Name, "rdma.roles.fabric: ["+h.Name+"] makes it a rail.",
		"has role storage, and is as fast as the fabric and next to %s: it is %s %s, and most HCAs of the fabric are %s %s",
		c.place(i), modelOf(h), layerOf(h), c.model, c.layer)
}

// place names the neighbors of an HCA.
func (c *roleCheck) place(i int) string { return cmp.Or(c.near[i], "no GPU, as all HCAs here") }

// layerOf returns the link layer of an HCA's active ports, or else of any.
func layerOf(h *machine.HCA) string {
	layer := ""
	for i := range h.Ports {
		if p := &h.Ports[i]; layer == "" || p.State == machine.PortActive {
			layer = p.LinkLayer
		}
	}
	return layer
}

func modelOf(h *machine.HCA) string {
	return cmp.Or(h.Type, strings.TrimSpace(h.Vendor+":"+strings.TrimPrefix(h.Device, "0x")))
}

// activeRate returns the highest of an HCA's active ports, in 10^9 bits a second.
func activeRate(h *machine.HCA) float64 {
	var best float64
	for _, p := range h.Ports {
		if p.State == machine.PortActive && p.RateGbps != nil {
			best = max(best, *p.RateGbps)
		}
	}
	return best
}

// mostOf returns the value that more than half have, empty for none.
func mostOf(counts map[string]int) string {
	total := 0
	for _, n := range counts {
		total += n
	}
	for value, n := range counts {
		if 2*n > total {
			return value
		}
	}
	return ""
}
