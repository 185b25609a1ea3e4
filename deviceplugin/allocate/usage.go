package allocate

import (
	"cmp"
	"maps"
	"slices"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/checkpoint"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// consumer is what one container has of one shared GPU.
type consumer struct {
	kubelet.Container
	quota.Claim
}

// usage is what containers have of GPUs.
type usage struct {
	consumers []consumer
	// exclusive is which container has a GPU, or a MIG device of it, that is not
	// to be shared.
	exclusive map[string]kubelet.Container
	recovered []Recovered
}

func (u *usage) add(c kubelet.Container, e *checkpoint.Entry) {
	for _, s := range e.Shares {
		u.addShare(c, e.Phase, s, quota.Policy(e.Policy))
	}
}

func (u *usage) addShare(c kubelet.Container, phase quota.Phase, s allocation.Share, p quota.Policy) {
	u.consumers = append(u.consumers, consumer{c, quota.Claim{Phase: phase, Share: s, Policy: p}})
}

func (u *usage) hold(ids []string, c kubelet.Container) {
	for _, id := range ids {
		u.exclusive[id] = c
	}
}

// shareholder is a container of another pod that has a share of a GPU, or may
// have; nil if none does.
func (u *usage) shareholder(uuid string, pod kubelet.Pod) *kubelet.Container {
	for i := range u.consumers {
		if c := &u.consumers[i]; c.Share.UUID == uuid && !c.Pod.Same(pod) {
			return &c.Container
		}
	}
	for i := range u.recovered {
		if r := &u.recovered[i]; slices.Contains(r.GPUs, uuid) && !r.Pod.Same(pod) {
			return &r.Container
		}
	}
	return nil
}

// usage derives who has what from the kubelet's snapshot and the entries.
func (n *Node) usage() *usage {
	u := &usage{exclusive: make(map[string]kubelet.Container), recovered: n.Recovered}
	holders := n.Snapshot.Holders()
	// Entries that are not distinguishable are of one container and one decision.
	latest := make(map[kubelet.Container]*checkpoint.Entry)
	for _, e := range n.Entries {
		if e.Owner == nil || e.Kind == cdi.RDMA || !n.Live(e, holders) {
			continue
		}
		if e.Kind == cdi.GPU {
			u.hold(e.IDs, *e.Owner)
		} else if old := latest[*e.Owner]; len(e.Shares) > 0 && (old == nil || later(e, old)) {
			latest[*e.Owner] = e
		}
	}
	for c, e := range latest {
		u.add(c, e)
	}
	for i := range n.Snapshot.Allocations {
		a := &n.Snapshot.Allocations[i]
		if kind, err := KindOf(n.Inventory.Config, a.Resource); err == nil && kind == cdi.GPU {
			u.hold(a.IDs, a.Container)
		}
	}
	return u
}

func later(a, b *checkpoint.Entry) bool {
	return cmp.Or(cmp.Compare(a.Decision, b.Decision), a.Created.Compare(b.Created), cmp.Compare(a.Device, b.Device)) > 0
}

// SharedGPUs are the inventory's with all that is taken.
func (n *Node) SharedGPUs() []quota.GPU { return n.usage().fill(n, nil, quota.Phase{}) }

// RecordedGPUs are the shared GPUs with what is taken by the entries that are not
// gone, without asking the kubelet.
func (n *Node) RecordedGPUs(gone map[string]bool) []quota.GPU {
	u := &usage{exclusive: make(map[string]kubelet.Container), recovered: n.Recovered}
	for _, e := range n.Entries {
		if e.Owner == nil || gone[e.Device] {
			continue
		}
		if e.Kind == cdi.GPU {
			u.hold(e.IDs, *e.Owner)
		}
		u.add(*e.Owner, e)
	}
	return u.fill(n, nil, quota.Phase{})
}

// ShareClaims lists the GPUs that containers have shares of, by container.
func (n *Node) ShareClaims() map[kubelet.Container][]string {
	all := make(map[kubelet.Container][]string)
	u := n.usage()
	for i := range u.consumers {
		c := &u.consumers[i]
		all[c.Container] = append(all[c.Container], c.Share.UUID)
	}
	for i := range u.recovered {
		all[u.recovered[i].Container] = u.recovered[i].GPUs
	}
	return all
}

// fill puts what is taken into the shared GPUs, which have nothing taken: all of
// it, or with a container, what is not available to it: what other pods have at
// most at any time, and what its own pod has while it runs.
func (u *usage) fill(n *Node, container *kubelet.Container, phase quota.Phase) []quota.GPU {
	gpus := slices.Clone(n.Inventory.Shared)
	at := make(map[string]int, len(gpus))
	for i := range gpus {
		at[gpus[i].UUID] = i
	}
	u.close(gpus, n, container)
	type onGPU struct {
		gpu int
		pod kubelet.Pod
	}
	of := make(map[onGPU][]quota.Claim)
	for i := range u.consumers {
		c := &u.consumers[i]
		gpu, ok := at[c.Share.UUID]
		own := container != nil && c.Pod.Same(container.Pod)
		if !ok || own && c.Name == container.Name {
			continue
		}
		t := onGPU{gpu, c.Pod}
		if own {
			t.pod = container.Pod
		}
		of[t] = append(of[t], c.Claim)
		if !own || c.Phase.Overlaps(phase) {
			c.Mark(&gpus[gpu])
		}
	}
	for t, claims := range of {
		var with *quota.Phase
		if container != nil && t.pod == container.Pod {
			with = &phase
		}
		gpus[t.gpu].Charge(quota.Peak(claims, with))
	}
	return gpus
}

// close keeps GPUs from new consumers that a container has exclusively, or that
// a container of which all was lost may have. The latter may have them again.
func (u *usage) close(gpus []quota.GPU, n *Node, container *kubelet.Container) {
	reject := func(uuid, reason string) {
		i := slices.IndexFunc(gpus, func(g quota.GPU) bool { return g.UUID == uuid })
		if i >= 0 && (gpus[i].Unhealthy == "" || gpus[i].Draining) {
			gpus[i].Unhealthy, gpus[i].Draining = reason, false
		}
	}
	for _, id := range slices.Sorted(maps.Keys(u.exclusive)) {
		reject(parentOf(n.Inventory.Machine, id), "held exclusively by "+u.exclusive[id].Pod.String())
	}
	for i := range u.recovered {
		r := &u.recovered[i]
		if container != nil && r.Same(*container) {
			continue
		}
		for _, uuid := range r.GPUs {
			if container == nil || !r.Pod.Same(container.Pod) || !u.recoveredFor(*container, uuid) {
				reject(uuid, r.reason())
			}
		}
	}
}

// recoveredFor reports whether a container may have a GPU because it, too, was
// recovered for it.
func (u *usage) recoveredFor(c kubelet.Container, uuid string) bool {
	return slices.ContainsFunc(u.recovered, func(r Recovered) bool { return r.Same(c) && slices.Contains(r.GPUs, uuid) })
}
