package binder

import (
	"fmt"
	"slices"
	"strings"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
)

// plan is what one container gets.
type plan struct {
	grants   []grant
	devices  Devices
	warnings []warning
	changed  bool
}

// grant is a record and what stands behind it: device nodes of HCAs, below
// /dev, and for shares what their cards and limits need.
type grant struct {
	record *record
	nodes  []string
	edits  []*cdi.ContainerEdits
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
		p := part{records: records}
		switch records[0].Kind {
		case kindGPU:
			d.gpus = append(d.gpus, held[i].ids...)
		case kindSGPU:
			// Others that could not be told apart are of answers that were lost.
			p.records = slices.DeleteFunc(records, func(r *record) bool { return !r.has(o) })
			if len(p.records) == 0 {
				return nil, fmt.Errorf("container %s has no card", o.Container)
			}
			d.addShares(p.records[0])
		case kindRDMA:
			p.used = b.use(&held[i], now)
		}
		d.parts = append(d.parts, p)
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
		if p.records[0].Kind != kindRDMA {
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

// addShares adds the cards of a share. They were reserved before: see
// [Binder.reserve].
func (d *decision) addShares(r *record) {
	for _, s := range r.Shares {
		g := d.gpu(s.UUID)
		g.Share = &Share{VCore: s.VCore, MemoryMiB: s.MemoryMiB, Policy: r.Policy}
		d.plan.devices.GPUs = append(d.plan.devices.GPUs, g)
	}
}

func (d *decision) addGPU(id string) {
	uuid, _, _ := strings.Cut(id, slotMark)
	d.plan.devices.GPUs = append(d.plan.devices.GPUs, d.gpu(uuid))
}

// gpu describes a GPU or MIG device, near which the container's HCAs shall be.
func (d *decision) gpu(uuid string) GPU {
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
	return g
}
