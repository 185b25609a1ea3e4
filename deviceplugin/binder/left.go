package binder

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/deviceplugin/resource/rdma"
	"github.com/heddle-dev/heddle/discovery/capacity"
)

// Recorded are the resources, sorted, that names were given out for and that
// containers may still have, whether or not they are in the configuration: a
// container starts only while somebody serves its resources.
func (b *Binder) Recorded() (gpus, hcas, slots []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kinds := map[string]string{}
	for _, r := range b.records {
		kinds[r.Resource] = r.Kind
	}
	for _, resource := range slices.Sorted(maps.Keys(kinds)) {
		switch kinds[resource] {
		case kindGPU:
			gpus = append(gpus, resource)
		case kindSGPU:
			slots = append(slots, resource)
		default:
			hcas = append(hcas, resource)
		}
	}
	return gpus, hcas, slots
}

// Elsewhere says which container has a GPU under another resource than this
// one, empty if none: of a resource that was renamed, or by another MIG
// strategy.
func (b *Binder) Elsewhere(resource, id string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.records {
		if r.Kind != kindGPU || r.Resource == resource || !slices.Contains(r.IDs, id) {
			continue
		}
		if r.Owner == nil {
			return "a container that has not started has it as " + r.Resource
		}
		return fmt.Sprintf("container %s of %s has it as %s", r.Owner.Container, r.Owner.Pod, r.Resource)
	}
	return ""
}

// same are the HCAs of a resource that has left the configuration: those that
// the container has, or, if it never started, those that its tickets name and
// that are well.
func (d *decision) same(r *record) ([]pick, error) {
	wanted := r.bound()
	started := len(wanted) > 0
	if !started {
		wanted = hcasNamed(r.IDs)
	}
	w := wish{gpus: d.places}
	reason := "its devices name no HCA"
	var refused []string
	for _, id := range wanted {
		at := slices.Index(d.ids, id)
		if at < 0 {
			refused = append(refused, id+": it is not there any more")
			continue
		}
		h := &d.scene.machine.HCAs[at]
		if why := capacity.Unfit(h, d.against); why != "" && !started {
			refused = append(refused, h.Name+": "+why)
			continue
		}
		w.kept = append(w.kept, at)
	}
	if len(w.kept) > 0 {
		return d.scene.choose(&w), nil
	}
	if len(refused) > 0 {
		reason = "there is no HCA to be had: " + strings.Join(refused, "; ")
	}
	return nil, fmt.Errorf("%s is not configured any more, and %s", r.Resource, reason)
}

// hcasNamed are the HCAs that tickets name, without repeats.
func hcasNamed(tickets []string) []string {
	var hcas []string
	for _, ticket := range tickets {
		if hca, _, err := rdma.ParseTicket(ticket); err == nil && hca != rdma.AllHCAs {
			hcas = append(hcas, hca)
		}
	}
	return sorted(hcas)
}
