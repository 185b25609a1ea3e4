package allocate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
)

// Result has the devices of one container.
type Result struct {
	Grants   []Grant
	Devices  cdi.Devices
	Warnings []Warning
	// Channels are the nodes of IMEX channels that the pod asks for.
	Channels []*specs.DeviceNode
	// Changed: it is not what the container was given before.
	Changed bool
}

// HasShares reports whether shares are among it.
func (r *Result) HasShares() bool {
	return slices.ContainsFunc(r.Grants, func(g Grant) bool { return g.Entry.Kind == cdi.SGPU })
}

// Grant is an entry and the device nodes of its HCAs, below /dev.
type Grant struct {
	Entry *Entry
	Nodes []string
}

// Warning describes a difference between the devices of a container and its request.
type Warning struct{ Reason, Message string }

// Decide decides what a container that starts is given, of all its resources
// together. It returns the entries of its pod's shares that this changes, also
// beside an error that came after them; pod is nil if it is not known.
func (n *Node) Decide(
	c kubelet.Container, held []kubelet.Allocation, pod *corev1.Pod,
) (shares []*Entry, r *Result, err error) {
	if err := n.checkExclusive(held); err != nil {
		return nil, nil, err
	}
	// Before the shares: a pod that is rejected holds none.
	channels, err := n.channels(c, held, pod)
	if err != nil {
		return nil, nil, err
	}
	with := *n
	if slices.ContainsFunc(held, func(a kubelet.Allocation) bool { return n.HasShares(&a) }) {
		if shares, err = n.shares(c, pod); err != nil {
			return nil, nil, err
		}
		with.Entries = maps.Clone(n.Entries)
		for _, e := range shares {
			with.Entries[e.Device] = e
		}
	}
	if r, err = with.container(c, held); err != nil {
		return shares, nil, err
	}
	r.Channels = channels
	r.Warnings = slices.Concat(r.Warnings, n.networkWarnings(pod, r), n.numaWarnings(shares))
	return shares, r, nil
}

// container decides what a container is given once its shares are decided.
func (n *Node) container(c kubelet.Container, held []kubelet.Allocation) (*Result, error) {
	d := decision{
		node: n, topology: newTopology(n.Inventory.Config.WithRoles(n.Inventory.Machine)), container: c,
		result: &Result{Devices: cdi.Devices{
			Namespace: c.Namespace, Pod: c.Pod.Name, Container: c.Name, GPUs: []cdi.DeviceGPU{}, HCAs: []cdi.DeviceHCA{},
		}},
	}
	d.ids = d.topology.machine.HCAIDs()
	var gpus []string
	for i := range held {
		a := &held[i]
		entries, err := n.entriesOf(a)
		if err != nil {
			return nil, err
		}
		if len(entries) == 0 {
			// Exclusive GPUs can be allocated without CDI.
			if kind, err := KindOf(n.Inventory.Config, a.Resource); err == nil && kind == cdi.GPU {
				gpus = append(gpus, a.IDs...)
			}
			continue
		}
		switch entries[0].Kind {
		case cdi.GPU:
			gpus = append(gpus, a.IDs...)
		case cdi.SGPU:
			// Others that are not distinguishable are of answers that were lost.
			entries = slices.DeleteFunc(entries, func(e *Entry) bool { return !e.HasShares(c) })
			if len(entries) == 0 {
				return nil, fmt.Errorf("container %s has no shares", c.Name)
			}
			d.addShares(entries[0])
		case cdi.RDMA, cdi.Claim:
		}
		d.parts = append(d.parts, part{a, entries})
	}
	slices.Sort(gpus)
	for _, id := range gpus {
		d.result.Devices.GPUs = append(d.result.Devices.GPUs, d.gpu(id))
	}
	for _, p := range d.parts {
		if err := d.grantPart(p); err != nil {
			return nil, err
		}
	}
	d.describe()
	return d.result, nil
}

// part is the allocation of one resource to a container: an entry, or several that are not
// distinguishable.
type part struct {
	allocation *kubelet.Allocation
	entries    []*Entry
}

// decision is a decision under way.
type decision struct {
	node      *Node
	topology  *topology
	container kubelet.Container
	// ids are the HCAs' identities.
	ids   []string
	parts []part
	// gpus are the container's GPUs by index in the machine, hcas the HCAs of parts
	// that are decided.
	gpus   []int
	hcas   []pick
	result *Result
}

// addShares adds the GPUs of shares.
func (d *decision) addShares(e *Entry) {
	for _, s := range e.Shares {
		g := d.gpu(s.UUID)
		g.Share, g.Policy = &s, e.Policy
		d.result.Devices.GPUs = append(d.result.Devices.GPUs, g)
	}
}

// gpu describes a GPU or MIG device for the choice of near HCAs.
func (d *decision) gpu(uuid string) cdi.DeviceGPU {
	described := cdi.DeviceGPU{UUID: uuid, Index: -1}
	parent := cmp.Or(d.topology.machine.ParentGPU(uuid), uuid)
	for i := range d.topology.machine.GPUs {
		g := &d.topology.machine.GPUs[i]
		if g.UUID != parent {
			continue
		}
		described.Index, described.PCI = g.Index, g.PCI
		if !slices.Contains(d.gpus, i) {
			d.gpus = append(d.gpus, i)
		}
	}
	return described
}

// grantPart decides the HCAs of a part, if it is one of HCAs, and writes its
// entries.
func (d *decision) grantPart(p part) error {
	if p.entries[0].Kind != cdi.RDMA {
		d.grant(p, nil)
		return nil
	}
	resource := p.entries[0].Resource
	r := d.node.Inventory.Config.RDMA.Resource(resource)
	var picks []pick
	var err error
	switch {
	case r == nil:
		picks, err = d.keep(p.entries[0])
	case isExact(p.entries[0].IDs):
		picks, err = d.exact(p, r)
	case r.Count == config.CountAll:
		picks = d.all(Members(d.node.Inventory, d.topology.machine, r))
	default:
		picks, err = d.choose(p, r)
	}
	if err == nil && len(picks) == 0 {
		err = fmt.Errorf("%s: no HCA is available", resource)
	}
	if err != nil {
		return err
	}
	d.hcas = append(d.hcas, picks...)
	d.grant(p, picks)
	return nil
}

// grant writes the picks into copies of the part's entries.
func (d *decision) grant(p part, picks []pick) {
	slices.SortFunc(picks, func(a, b pick) int { return d.topology.hcaRow[a.hca] - d.topology.hcaRow[b.hca] })
	class := classOf(picks)
	var nodes, ids []string
	for _, pick := range picks {
		ids = append(ids, d.ids[pick.hca])
		nodes = append(nodes, nodesOf(&d.topology.machine.HCAs[pick.hca])...)
		d.addHCA(p.entries[0].Resource, pick)
	}
	if len(picks) > 0 && d.topology.machine.RDMA.RDMACM {
		nodes = append(nodes, connectionManager)
	}
	for _, old := range p.entries {
		e, owner := *old, d.container
		if old.Owner != nil {
			owner.UID = cmp.Or(owner.UID, old.Owner.UID)
		}
		e.Owner, e.Class = &owner, class
		if e.Kind == cdi.RDMA {
			e.HCAs, e.Extra = deal(e.IDs, old.HCAs, ids)
		}
		d.result.Changed = d.result.Changed || old.Owner == nil || *old.Owner != owner ||
			!slices.Equal(old.Bound(), e.Bound())
		d.result.Grants = append(d.result.Grants, Grant{&e, nodes})
	}
}

// warn reports an allocation when it is made or becomes another, and not each
// time that the container starts again.
func (d *decision) warn(p part, picks []pick, reason, message string) {
	bound := make([]string, len(picks))
	for i, pick := range picks {
		bound[i] = d.ids[pick.hca]
	}
	old := p.entries[0]
	if old.Owner != nil && slices.Equal(old.Bound(), kubelet.SortIDs(bound)) {
		return
	}
	d.result.Warnings = append(d.result.Warnings, Warning{reason, message})
}

func (d *decision) addHCA(resource string, p pick) {
	h := &d.topology.machine.HCAs[p.hca]
	x := cdi.DeviceHCA{
		ID: d.ids[p.hca], Name: h.Name, PCI: h.PCI, Resource: resource, Rail: d.topology.rails[p.hca],
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
	if len(x.Ports) == 0 && (h.Elsewhere || h.PhysFn != "") {
		x.Ports = portsOf(h)
	}
	if p.gpu >= 0 {
		x.GPU, x.Class = d.topology.machine.GPUs[p.gpu].UUID, p.class.String()
	}
	for _, node := range nodesOf(h) {
		x.Nodes = append(x.Nodes, "/dev/"+node)
	}
	d.result.Devices.HCAs = append(d.result.Devices.HCAs, x)
}

// portsOf returns all ports of an HCA that a CNI plugin brings up in the pod's network,
// after the last scan or where no scan sees it.
func portsOf(h *machine.HCA) []int {
	if len(h.Ports) == 0 {
		return []int{1} // The port of a virtual function, and of most HCAs.
	}
	ports := make([]int, len(h.Ports))
	for i := range h.Ports {
		ports[i] = h.Ports[i].Number
	}
	return ports
}

// describe completes the list of devices once all are known: PCI order over
// all resources, and every GPU's nearest HCA.
func (d *decision) describe() {
	devices := &d.result.Devices
	slices.SortStableFunc(devices.HCAs, func(a, b cdi.DeviceHCA) int {
		return cmp.Or(machine.ComparePCI(a.PCI, b.PCI), machine.CompareNames(a.Name, b.Name))
	})
	slices.SortStableFunc(devices.GPUs, func(a, b cdi.DeviceGPU) int { return machine.ComparePCI(a.PCI, b.PCI) })
	if len(d.hcas) == 0 {
		return
	}
	for i := range devices.GPUs {
		g := &devices.GPUs[i]
		for _, gpu := range d.gpus {
			if d.topology.machine.GPUs[gpu].PCI == g.PCI {
				best := d.topology.nearest(gpu, d.hcas)
				g.HCA, g.Class = d.topology.machine.HCAs[best.hca].Name, best.class.String()
			}
		}
	}
}

// classOf returns the longest path from a pick to its GPU; empty without GPUs.
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

// Farther reports whether path class a, as an entry has it, is longer than b.
func Farther(a, b string) bool {
	order := []string{"unknown", "SYS", "NODE", "PHB", "PXB", "PIX"}
	return slices.Index(order, a) < slices.Index(order, b)
}

// infiniband is the folder of RDMA device nodes below /dev, connectionManager the
// node that all HCAs share.
const (
	infiniband        = "infiniband"
	connectionManager = infiniband + "/rdma_cm"
)

// nodesOf returns the device nodes that an HCA's user needs, below /dev: its
// uverbs. umad and issm are for software that manages the fabric.
func nodesOf(h *machine.HCA) []string {
	nodes := make([]string, len(h.CharDevices.UVerbs))
	for i, name := range h.CharDevices.UVerbs {
		nodes[i] = infiniband + "/" + name
	}
	return nodes
}
