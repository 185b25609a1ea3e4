package binder

import (
	"slices"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/resource/rdma"
)

// against says why an HCA is unhealthy; empty if it is well.
type against = func(*machine.HCA) string

// grant writes the picks into the part's records, as new ones.
func (d *decision) grant(p *part, picks []pick) {
	slices.SortFunc(picks, func(a, b pick) int { return d.scene.hcaRow[a.hca] - d.scene.hcaRow[b.hca] })
	class := classOf(picks)
	var nodes []string
	for _, pick := range picks {
		nodes = append(nodes, nodesOf(&d.scene.machine.HCAs[pick.hca])...)
		d.addHCA(p.records[0].Resource, d.ids[pick.hca], pick)
	}
	if len(picks) > 0 && d.scene.machine.RDMA.RDMACM {
		nodes = append(nodes, connectionManager)
	}
	for _, old := range p.records {
		r := old.clone()
		r.Owner, r.Class = &d.owner, class
		if r.Kind == kindRDMA {
			r.HCAs, r.Extra = deal(r.IDs, old.HCAs, picks, d.ids)
		}
		d.plan.changed = d.plan.changed || old.Owner == nil || *old.Owner != d.owner ||
			!slices.Equal(old.bound(), r.bound())
		d.plan.grants = append(d.plan.grants, grant{record: r, nodes: nodes})
	}
}

// deal gives every ticket one of the HCAs: the one it had, else the one it
// names, else any; and returns those that are left over.
func deal(tickets, had []string, picks []pick, ids []string) (dealt, extra []string) {
	left := make([]string, len(picks))
	for i, p := range picks {
		left[i] = ids[p.hca]
	}
	dealt = make([]string, len(tickets))
	give := func(i int, hca string) {
		if at := slices.Index(left, hca); dealt[i] == "" && at >= 0 {
			dealt[i], left = hca, slices.Delete(left, at, at+1)
		}
	}
	for i, hca := range had {
		give(i, hca)
	}
	for i, ticket := range tickets {
		if hca, _, err := rdma.ParseTicket(ticket); err == nil {
			give(i, hca)
		}
	}
	for i := range tickets {
		if len(left) > 0 {
			give(i, left[0])
		}
	}
	if len(left) == 0 {
		left = nil
	}
	return dealt, left
}

// warn tells of a binding when it is made or becomes another, and not each
// time that the container starts again.
func (d *decision) warn(p *part, picks []pick, reason, message string) {
	bound := make([]string, len(picks))
	for i, pick := range picks {
		bound[i] = d.ids[pick.hca]
	}
	old := p.records[0]
	if old.Owner != nil && slices.Equal(old.bound(), sorted(bound)) {
		return
	}
	d.plan.warnings = append(d.plan.warnings, warning{reason, message})
}

func (d *decision) addHCA(resource, id string, p pick) {
	h := &d.scene.machine.HCAs[p.hca]
	x := HCA{
		ID: id, Name: h.Name, PCI: h.PCI, Resource: resource, Rail: d.scene.rails[p.hca],
		Ports: []int{}, Nodes: []string{},
	}
	for i := range h.Ports {
		port := &h.Ports[i]
		if port.State == machine.PortActive {
			x.Ports = append(x.Ports, port.Number)
		}
		if i == 0 || port.State == machine.PortActive && len(x.Ports) == 1 {
			x.LinkLayer, x.RateGbps = port.LinkLayer, port.RateGbps
		}
	}
	if p.gpu >= 0 {
		x.GPU, x.Class = d.scene.machine.GPUs[p.gpu].UUID, p.class.String()
	}
	for _, node := range nodesOf(h) {
		x.Nodes = append(x.Nodes, "/dev/"+node)
	}
	d.plan.devices.HCAs = append(d.plan.devices.HCAs, x)
}

// describe completes the list of devices once all are known: PCI order over
// all resources, and every GPU's nearest HCA.
func (d *decision) describe() {
	devices := &d.plan.devices
	slices.SortStableFunc(devices.HCAs, func(a, b HCA) int {
		if c := machine.ComparePCI(a.PCI, b.PCI); c != 0 {
			return c
		}
		return machine.CompareNames(a.Name, b.Name)
	})
	slices.SortStableFunc(devices.GPUs, func(a, b GPU) int { return machine.ComparePCI(a.PCI, b.PCI) })
	if len(d.bound) == 0 {
		return
	}
	for i := range devices.GPUs {
		g := &devices.GPUs[i]
		for _, place := range d.places {
			if d.scene.machine.GPUs[place].PCI == g.PCI {
				best := d.scene.best(place, d.bound)
				g.HCA, g.Class = d.scene.machine.HCAs[best.hca].Name, best.class.String()
			}
		}
	}
}

// classOf is the longest way from a pick to its GPU; empty without GPUs.
func classOf(picks []pick) string {
	var worst *pick
	for i := range picks {
		if p := &picks[i]; p.gpu >= 0 && (worst == nil || p.class.Compare(worst.class) < 0) {
			worst = p
		}
	}
	if worst == nil {
		return ""
	}
	return worst.class.String()
}

// farther tells whether the way of class word a is longer than that of b.
func farther(a, b string) bool {
	order := []string{"unknown", "SYS", "NODE", "PHB", "PXB", "PIX"}
	return slices.Index(order, a) < slices.Index(order, b)
}
