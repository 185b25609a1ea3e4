package binder

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/resource/rdma"
	"github.com/heddle-dev/heddle/topo/affinity"
)

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
	holders := now.holders()
	u := usage{all: make(map[string]int), here: make(map[string]int)}
	counted := make(map[[3]string]bool) // Two containers of a pod can hold one ticket.
	count := func(r *record, ticket, hca string) {
		mine := r.Resource == h.resource && slices.Contains(h.ids, ticket)
		key := [3]string{r.Resource, ticket, hca}
		if hca == "" || mine || counted[key] {
			return
		}
		lost := r.Owner != nil && b.lost[*r.Owner]
		if !lost && r.decided <= now.at && !holders.have(r, ticket) {
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
