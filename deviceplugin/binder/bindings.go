package binder

import (
	"context"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

// Binding is what a container has.
type Binding struct {
	Namespace string
	Pod       string
	UID       string
	Container string
	// GPUs are UUIDs, HCAs RDMA names, HCAIDs identities in the same order.
	GPUs   []string
	HCAs   []string
	HCAIDs []string
	// Class is the longest way from one of the HCAs to the nearest GPU of the
	// container; empty without either.
	Class string
	// Shares are the parts of shared cards, of QoS policy Policy, which By
	// chose; see package allocation.
	Shares []allocation.Share
	Policy string
	By     string
	// Enforced is what makes the limits of the shares hold.
	Enforced enforce.Enforced
	// Unrecorded tells that neither a record nor a CDI spec is left of it. Its
	// cards are those that its pod's annotation names.
	Unrecorded bool
	// CDINames are the names that Allocate gave, by resource.
	CDINames map[string]string
}

// Bindings are those of all containers that have started, by namespace, pod
// and container; with those that have not and whose pod has its cards.
func (b *Binder) Bindings() []Binding {
	b.mu.Lock()
	byOwner := make(map[owner][]*record)
	for _, r := range b.records {
		if _, gone := b.gone[r.Device]; r.Owner != nil && !gone {
			byOwner[*r.Owner] = append(byOwner[*r.Owner], r)
		}
	}
	unrecorded := b.unrecordedBindingsLocked()
	b.mu.Unlock()
	m := b.options.Machine()
	names := make(map[string]string, len(m.HCAs))
	place := make(map[string]int, len(m.HCAs))
	for i, id := range m.HCAIDs() {
		names[id], place[id] = m.HCAs[i].Name, i
	}
	bindings := make([]Binding, 0, len(byOwner))
	for o, records := range byOwner {
		x := Binding{
			Namespace: o.Namespace, Pod: o.Name, UID: o.UID, Container: o.Container, CDINames: make(map[string]string),
		}
		for _, r := range records {
			x.CDINames[r.Resource] = r.name()
			switch r.Kind {
			case kindGPU:
				x.GPUs = append(x.GPUs, r.IDs...)
			case kindSGPU:
				x.Shares, x.Policy, x.By, x.Enforced = r.Shares, r.Policy, r.By, r.Enforced
			}
			x.HCAIDs = append(x.HCAIDs, r.bound()...)
			if r.Class != "" && (x.Class == "" || farther(r.Class, x.Class)) {
				x.Class = r.Class
			}
		}
		slices.Sort(x.GPUs)
		slices.SortFunc(x.HCAIDs, func(p, q string) int { return place[p] - place[q] })
		for _, id := range x.HCAIDs {
			x.HCAs = append(x.HCAs, names[id])
		}
		bindings = append(bindings, x)
	}
	bindings = append(bindings, unrecorded...)
	slices.SortFunc(bindings, func(p, q Binding) int {
		return strings.Compare(
			strings.Join([]string{p.Namespace, p.Pod, p.Container, p.UID}, "\x00"),
			strings.Join([]string{q.Namespace, q.Pod, q.Container, q.UID}, "\x00"))
	})
	return bindings
}

// unrecordedBindingsLocked are those of testimonies. It is for holders of mu.
func (b *Binder) unrecordedBindingsLocked() []Binding {
	var all []Binding
	for i := range b.testimonies {
		t := &b.testimonies[i]
		if t.doubt != "" || b.recordedLocked(t.owner) {
			continue
		}
		all = append(all, Binding{
			Namespace: t.Namespace, Pod: t.Name, UID: t.UID, Container: t.Container,
			Shares: t.shares, Policy: string(t.policy), By: t.by, Unrecorded: true, CDINames: map[string]string{},
		})
	}
	return all
}

// Bound says which HCA a ticket of an RDMA resource stands for now, or which
// card a ticket for a share, by ticket: the health of a ticket in use is that of
// its device.
func (b *Binder) Bound(resource string) map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	bound := make(map[string]string)
	for _, r := range b.records {
		if _, gone := b.gone[r.Device]; gone || r.Resource != resource {
			continue
		}
		for i, hca := range r.HCAs {
			if hca != "" {
				bound[r.IDs[i]] = hca
			}
		}
		for i, s := range r.Shares {
			bound[r.IDs[i]] = s.UUID
		}
	}
	return bound
}

// Holders are the device IDs of a resource that pods hold, by either of the
// kubelet's accounts, or by ours where the kubelet has lost its own. It fails
// if one of the kubelet's two cannot be read.
func (b *Binder) Holders(ctx context.Context, resource string) (map[string]bool, error) {
	now, err := b.look(ctx)
	if err == nil {
		err = now.checkpointErr
	}
	if err != nil {
		return nil, err
	}
	held := make(map[string]bool)
	for _, h := range slices.Concat(now.holdings, now.counted) {
		if h.resource == resource {
			for _, id := range h.ids {
				held[id] = true
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.lostLocked(resource, false) {
		held[id] = true
	}
	return held, nil
}
