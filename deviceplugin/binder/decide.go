package binder

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/rdma"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// plan is what one container gets.
type plan struct {
	grants   []grant
	devices  Devices
	warnings []warning
	changed  bool
}

// grant is a record and the device nodes, below /dev, that stand behind it.
type grant struct {
	record *record
	nodes  []string
}

type warning struct{ reason, message string }

// decide finds or makes the binding of a container, of all its resources
// together, and remembers it. Only files are still to be written.
func (b *Binder) decide(o owner, held []holding, now *account) (*plan, error) {
	c := b.options.Config()
	d := decision{
		config: c, scene: newScene(c.WithRoles(b.options.Machine())), against: b.options.Against, owner: o,
		plan: &plan{devices: Devices{
			Namespace: o.Namespace, Pod: o.Name, Container: o.Container, GPUs: []GPU{}, HCAs: []HCA{},
		}},
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range held {
		records, err := b.recordsOf(&held[i])
		if err != nil {
			return nil, err
		}
		if len(records) == 0 {
			if kind, _, err := kindOf(c, held[i].resource); err == nil && kind == kindGPU {
				d.gpus = append(d.gpus, held[i].ids...) // Allocated without CDI.
			}
			continue
		}
		if records[0].Kind == kindGPU {
			d.gpus = append(d.gpus, held[i].ids...)
		}
		d.parts = append(d.parts, part{records: records, used: b.use(&held[i], now)})
	}
	if err := d.decide(); err != nil {
		return nil, err
	}
	b.decisions++
	for _, g := range d.plan.grants {
		g.record.decided = b.decisions
		b.records[g.record.Device] = g.record
		delete(b.gone, g.record.Device)
	}
	return d.plan, nil
}

// recordsOf are the records of the names that a holding's container has. The
// checkpoint tells them. Without it they are all that were given out for these
// IDs and not yet to anybody else: an ID has one holder, so the others are of
// Allocate calls whose answer was lost, and nobody will use them.
func (b *Binder) recordsOf(h *holding) ([]*record, error) {
	var records []*record
	if !h.known {
		for _, r := range b.records {
			mine := r.Owner == nil || r.Owner.same(h.Pod) && r.Owner.Container == h.Container
			if mine && r.Resource == h.resource && slices.Equal(r.IDs, h.ids) {
				records = append(records, r)
			}
		}
		if _, _, err := kindOf(b.options.Config(), h.resource); err == nil && len(records) == 0 {
			return nil, fmt.Errorf("no record of an Allocate call for its %d devices of %s", len(h.ids), h.resource)
		}
		slices.SortFunc(records, func(p, q *record) int { return strings.Compare(p.Device, q.Device) })
		return records, nil
	}
	for _, name := range h.names {
		kind, device, ok := parseName(name)
		if !ok {
			continue // The static spec's, or another plugin's.
		}
		if !strings.HasPrefix(device, digest(h.resource, h.ids)) {
			return nil, fmt.Errorf("CDI name %s was not made for its devices of %s", name, h.resource)
		}
		r := b.records[device]
		if r == nil {
			r = &record{Kind: kind, Device: device, Resource: h.resource, IDs: h.ids, Created: b.options.Now().UTC()}
		}
		records = append(records, r)
	}
	return records, nil
}

// usage counts, by HCA identity, the tickets of others that are bound to it.
type usage struct {
	// all counts those of every resource, here those of one.
	all, here map[string]int
}

// use derives who has what from the kubelet's account and our records, but for
// the tickets of h itself: one pod holds them, so what is bound to them is the
// pod's own, from its init containers or its last run. Decisions later than
// the account count too.
func (b *Binder) use(h *holding, now *account) usage {
	holders := make(map[[2]string]Pod)
	for i := range now.holdings {
		for _, id := range now.holdings[i].ids {
			holders[[2]string{now.holdings[i].resource, id}] = now.holdings[i].Pod
		}
	}
	u := usage{all: make(map[string]int), here: make(map[string]int)}
	counted := make(map[[3]string]bool) // Two containers of a pod can hold one ticket.
	count := func(r *record, ticket, hca string) {
		mine := r.Resource == h.resource && slices.Contains(h.ids, ticket)
		key := [3]string{r.Resource, ticket, hca}
		if hca == "" || mine || counted[key] {
			return
		}
		pod, held := holders[[2]string{r.Resource, ticket}]
		lost := r.Owner != nil && b.lost[*r.Owner]
		if !lost && r.decided <= now.at && (!held || r.Owner == nil || !r.Owner.same(pod)) {
			return
		}
		counted[key] = true
		u.all[hca]++
		if r.Resource == h.resource {
			u.here[hca]++
		}
	}
	for _, r := range b.records {
		for i, hca := range r.HCAs {
			count(r, r.IDs[i], hca)
		}
		for _, hca := range r.Extra {
			count(r, r.IDs[0], hca)
		}
	}
	return u
}

// part is what a container has of one resource.
type part struct {
	// records are one, or several that cannot be told apart.
	records []*record
	used    usage
}

// decision is a decision under way.
type decision struct {
	config  *config.NodeConfig
	scene   *scene
	against against
	owner   owner
	gpus    []string
	parts   []part

	// ids are the HCAs' identities.
	ids []string
	// places are the GPUs' places in the machine, bound the HCAs of parts that
	// are decided.
	places []int
	bound  []pick
	plan   *plan
}

func (d *decision) decide() error {
	slices.Sort(d.gpus)
	for _, id := range d.gpus {
		d.addGPU(id)
	}
	for i := range d.parts {
		p := &d.parts[i]
		if p.records[0].Kind == kindGPU {
			d.grant(p, nil)
			continue
		}
		if err := d.addHCAs(p); err != nil {
			return err
		}
	}
	d.describe()
	return nil
}

func (d *decision) addGPU(id string) {
	uuid, _, _ := strings.Cut(id, "::")
	g := GPU{UUID: uuid, Index: -1}
	for i := range d.scene.machine.GPUs {
		gpu := &d.scene.machine.GPUs[i]
		instance := false
		for j := range gpu.MIG.Devices {
			instance = instance || gpu.MIG.Devices[j].UUID == uuid
		}
		if gpu.UUID != uuid && !instance {
			continue
		}
		g.Index, g.PCI = gpu.Index, gpu.PCI
		if !slices.Contains(d.places, i) {
			d.places = append(d.places, i)
		}
	}
	d.plan.devices.GPUs = append(d.plan.devices.GPUs, g)
}

// addHCAs decides the HCAs of one RDMA resource.
func (d *decision) addHCAs(p *part) error {
	resource := p.records[0].Resource
	r := rdmaConfig(d.config, resource)
	d.ids = d.scene.machine.HCAIDs()
	var picks []pick
	var err error
	switch {
	case r == nil:
		picks, err = d.same(p.records[0])
	case r.Count == config.CountAll:
		picks = d.all(rdma.Members(d.scene.machine, r, d.against))
	default:
		picks, err = d.counted(p, r)
	}
	if err == nil && len(picks) == 0 {
		err = fmt.Errorf("%s: there is no HCA to be had", resource)
	}
	if err != nil {
		return err
	}
	d.bound = append(d.bound, picks...)
	d.grant(p, picks)
	return nil
}

// counted are as many HCAs as there are tickets.
func (d *decision) counted(p *part, r *config.RDMAResource) ([]pick, error) {
	members := rdma.Members(d.scene.machine, r, d.against)
	w, refused := d.wishOf(p, r, members)
	picks := d.scene.choose(w)
	if len(picks) < w.n {
		// Another of the container's resources may have taken the rest.
		w.kept, w.among = hcasOf(picks), slices.Concat(w.among, d.shared(members, p, r))
		picks = d.scene.choose(w)
	}
	if len(picks) < w.n {
		message := fmt.Sprintf("%s: %d HCAs are asked for and %d can be had", r.Name, w.n, len(picks))
		if len(refused) > 0 {
			message += ": " + strings.Join(refused, "; ")
		}
		if r.Count == config.CountStrict {
			return nil, fmt.Errorf("%s (count: strict)", message)
		}
		if len(picks) == 0 {
			return nil, errors.New(message)
		}
		d.warn(p, picks, FewerHCAs, message)
	}
	if message := d.far(members, w, picks); message != "" {
		d.warn(p, picks, FarHCAs, r.Name+": "+message)
	}
	return picks, nil
}

// all are the HCAs of a resource with count all: every one that has a device
// node, whatever its ports do.
func (d *decision) all(members []rdma.Member) []pick {
	var among []int
	for _, m := range members {
		if len(d.scene.machine.HCAs[m.Index].CharDevices.UVerbs) > 0 {
			among = append(among, m.Index)
		}
	}
	return d.scene.choose(&wish{n: len(among), gpus: d.places, among: among})
}

// wishOf is what is looked for, and why which HCAs are out of the question.
func (d *decision) wishOf(p *part, r *config.RDMAResource, members []rdma.Member) (w *wish, refused []string) {
	first := p.records[0]
	w = &wish{n: len(first.IDs), gpus: d.places, nominal: make(map[int]bool), used: make(map[int]int)}
	for _, m := range members {
		w.used[m.Index] = p.used.all[m.ID]
		for _, ticket := range first.IDs {
			if hca, _, err := rdma.ParseTicket(ticket); err == nil && hca == m.ID {
				w.nominal[m.Index] = true
			}
		}
		against := m.Against
		if against == "" && p.used.here[m.ID] >= r.Sharers {
			against = fmt.Sprintf("%d containers share it already", p.used.here[m.ID])
		}
		if against != "" {
			refused = append(refused, d.scene.machine.HCAs[m.Index].Name+": "+against)
			continue
		}
		if slices.Contains(hcasOf(d.bound), m.Index) {
			continue
		}
		w.among = append(w.among, m.Index)
		if slices.Contains(first.HCAs, m.ID) && len(w.kept) < w.n {
			w.kept = append(w.kept, m.Index)
		}
	}
	return w, refused
}

// shared are the HCAs that another resource of the container has and that
// this one could have too.
func (d *decision) shared(members []rdma.Member, p *part, r *config.RDMAResource) []int {
	var among []int
	for _, m := range members {
		if slices.Contains(hcasOf(d.bound), m.Index) && m.Against == "" && p.used.here[m.ID] < r.Sharers {
			among = append(among, m.Index)
		}
	}
	return among
}

// far names the GPUs that would have a near HCA if all were well and free, and
// now have none of this or an earlier resource. A machine where everything is far from everything is not at
// fault.
func (d *decision) far(members []rdma.Member, w *wish, picks []pick) string {
	if len(d.places) == 0 || len(picks) == 0 {
		return ""
	}
	ideal := *w
	ideal.kept, ideal.among = nil, make([]int, len(members))
	for i, m := range members {
		ideal.among[i] = m.Index
	}
	best := d.scene.choose(&ideal)
	var far []string
	for _, gpu := range d.places {
		got, could := d.scene.best(gpu, slices.Concat(d.bound, picks)), d.scene.best(gpu, best)
		if got.class.Kind <= affinity.NODE && could.class.Kind > affinity.NODE {
			far = append(far, fmt.Sprintf("GPU %d has only %s (%s) and would have %s (%s)",
				d.scene.machine.GPUs[gpu].Index, got.class, d.scene.machine.HCAs[got.hca].Name,
				could.class, d.scene.machine.HCAs[could.hca].Name))
		}
	}
	return strings.Join(far, "; ")
}

// best is the pick that is nearest to a GPU; there is at least one.
func (s *scene) best(gpu int, picks []pick) pick {
	var best pick
	for i, p := range picks {
		if c := s.class(gpu, p.hca); i == 0 || c.Compare(best.class) > 0 {
			best = pick{hca: p.hca, gpu: gpu, class: c}
		}
	}
	return best
}

func hcasOf(picks []pick) []int {
	hcas := make([]int, len(picks))
	for i, p := range picks {
		hcas[i] = p.hca
	}
	return hcas
}
