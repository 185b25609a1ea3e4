package doctor

import (
	"cmp"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// roles explains a fabric that is not where the GPUs are, and roles that were a close call, with the setting that
// decides them. It corrects m's roles by set; a role that set names is never a close call.
func (l *Findings) roles(m *machine.Machine, set *config.Roles) {
	near := nearGPUs(m)
	switches := slices.ContainsFunc(near, func(names string) bool { return names != "" })
	usual := usualOf(m, near)
	var fabric, beside []string
	named := true
	for i := range m.HCAs {
		h := &m.HCAs[i]
		switch {
		case h.PhysFn != "":
		case h.Role == machine.RoleFabric:
			_, isNamed := set.Of(h)
			fabric, named = append(fabric, h.Name), named && isNamed
		case h.Role == machine.RoleStorage && near[i] != "":
			beside = append(beside, h.Name)
		}
	}
	for i := range m.HCAs {
		h := &m.HCAs[i]
		if _, isNamed := set.Of(h); !isNamed && h.PhysFn == "" {
			l.closeCall(h, usual, cmp.Or(near[i], "no GPU, as all HCAs here"), !switches || near[i] != "")
		}
	}
	if len(fabric) == 0 || usual.near || len(beside) == 0 {
		return
	}
	add := l.problem
	if named {
		add = l.note
	}
	add("fabric HCAs", "If those next to GPUs are the rails: rdma.roles.fabric: ["+strings.Join(beside, ", ")+"].",
		"none of %s shares a PCIe switch with a GPU, while %s of role storage do",
		strings.Join(fabric, ", "), strings.Join(beside, ", "))
}

// usualOf describes the HCAs of the fabric. near has the GPUs next to each HCA.
func usualOf(m *machine.Machine, near []string) like {
	usual := like{who: "most"}
	layers, models, n := map[string]int{}, map[string]int{}, 0
	var best *machine.HCA
	for i := range m.HCAs {
		h := &m.HCAs[i]
		if h.PhysFn != "" || h.Role != machine.RoleFabric {
			continue
		}
		n++
		usual.near = usual.near || near[i] != ""
		layers[layerOf(h)]++
		models[modelOf(h)]++
		if r := activeRate(h); r > 0 && (usual.rate == 0 || r < usual.rate) {
			usual.rate = r
		}
		if best == nil || activeRate(h) > activeRate(best) {
			best = h
		}
	}
	usual.layer, usual.model = mostOf(layers), mostOf(models)
	if usual.near && (n == 2 || n == 3) && (usual.layer == "" || usual.model == "") {
		usual.layer, usual.model = cmp.Or(usual.layer, layerOf(best)), cmp.Or(usual.model, modelOf(best))
		usual.who = "other"
	}
	return usual
}

// like describes most HCAs of the fabric, or of two or three the fastest: their kind, and the lowest rate of the
// active ports.
type like struct {
	layer, model, who string
	rate              float64
	// near is whether one is next to a GPU.
	near bool
}

// closeCall explains a fabric HCA that is not like the others, and a storage HCA that could be of the fabric: it is as
// fast, or no HCA of the fabric is up. place names its neighbors, and near is whether it is as near to GPUs as the
// fabric can be.
func (l *Findings) closeCall(h *machine.HCA, usual like, place string, near bool) {
	other := "rdma.roles.storage: [" + h.Name + "] takes it out of the fabric."
	switch {
	case h.Role == machine.RoleFabric && usual.layer != "" && layerOf(h) != usual.layer:
		l.problem(h.Name, "mlxconfig -d "+h.PCI+" query LINK_TYPE_P1 shows the mode of its port, and set changes it. "+other,
			"is %s, where %s HCAs of the fabric are %s: it is a rail because it is next to %s",
			layerOf(h), usual.who, usual.layer, place)
	case h.Role == machine.RoleFabric && usual.model != "" && modelOf(h) != usual.model:
		l.note(h.Name, other, "is %s, where %s HCAs of the fabric are %s: it is a rail because it is next to %s",
			modelOf(h), usual.who, usual.model, place)
	case h.Role == machine.RoleFabric && !near && usual.near:
		l.problem(h.Name, "See dmesg for the GPU's XID, then reset it or reboot. "+other,
			"is next to no GPU, as others of its kind are: its GPU may have left the bus. It stays a rail")
	case h.Role == machine.RoleStorage && activeRate(h) > 0 && activeRate(h) >= usual.rate && near:
		l.note(h.Name, "rdma.roles.fabric: ["+h.Name+"] makes it a rail.",
			"has role storage, and is as fast as the fabric and next to %s: it is %s %s, and %s HCAs of the fabric are %s %s",
			place, modelOf(h), layerOf(h), usual.who, usual.model, usual.layer)
	}
}

// nearGPUs returns the GPUs that share a PCIe switch with each HCA, in the order of m.HCAs.
func nearGPUs(m *machine.Machine) []string {
	near := make([]string, len(m.HCAs))
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
		near[d.Index] = strings.Join(names, ", ")
	}
	return near
}

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
