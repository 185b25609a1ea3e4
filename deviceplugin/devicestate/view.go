package devicestate

import (
	"maps"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// View is the content of a State at one moment, without a request to the kubelet. It is never
// changed.
type View struct{ node allocate.Node }

// View returns the current content.
func (s *State) View() *View {
	s.mu.Lock()
	defer s.mu.Unlock()
	node := s.viewLocked()
	node.Entries, node.Claims = maps.Clone(s.entries), maps.Clone(s.claims)
	return &View{*node}
}

// viewLocked returns the content without copies. It is for holders of mu, as long as they use it.
func (s *State) viewLocked() *allocate.Node {
	node := &allocate.Node{
		Inventory: s.inventory.Load(), Entries: s.entries, Claims: s.claims, Gone: make(map[string]bool, len(s.gone)),
		Unrecorded: s.unrecordedLocked(),
	}
	for device := range s.gone {
		node.Gone[device] = true
	}
	return node
}

// Allocations returns the allocations of all started containers, and of containers that have their
// shares before the start, by namespace, pod and container.
func (v *View) Allocations() []report.Binding {
	byOwner := make(map[kubelet.Container][]*allocate.Entry)
	for _, e := range v.node.Entries {
		if e.Owner != nil && !v.node.Gone[e.Device] {
			byOwner[*e.Owner] = append(byOwner[*e.Owner], e)
		}
	}
	m := v.node.Inventory.Machine
	names, order := make(map[string]string, len(m.HCAs)), make(map[string]int, len(m.HCAs))
	for i, id := range m.HCAIDs() {
		names[id], order[id] = m.HCAs[i].Name, i
	}
	all := make([]report.Binding, 0, len(byOwner))
	for c, entries := range byOwner {
		a := newBinding(c, entries)
		for _, e := range entries {
			if e.Kind == cdi.SGPU {
				l := limitOf(e, v.node.Inventory)
				a.NotEnforced = l.NotEnforced()
			}
		}
		slices.SortFunc(a.HCAIDs, func(p, q string) int { return order[p] - order[q] })
		for _, id := range a.HCAIDs {
			a.HCAs = append(a.HCAs, names[id])
		}
		all = append(all, a)
	}
	for i := range v.node.Unrecorded {
		u := &v.node.Unrecorded[i]
		a := newBinding(u.Container, nil)
		a.GPUs, a.Unrecorded = inventory.DevicesOf(u.IDs), true
		all = append(all, a)
	}
	for _, c := range v.node.Claims {
		for _, pod := range c.Pods {
			all = append(all, claimBinding(c, pod, names))
		}
	}
	slices.SortFunc(all, func(p, q report.Binding) int {
		return strings.Compare(
			strings.Join([]string{p.Namespace, p.Pod, p.Container, p.UID, p.Claim}, "\x00"),
			strings.Join([]string{q.Namespace, q.Pod, q.Container, q.UID, q.Claim}, "\x00"))
	})
	return all
}

// claimBinding returns the devices of a claim that a pod uses; names are of HCAs, by identity.
func claimBinding(c *allocate.Claim, pod kubelet.Pod, names map[string]string) report.Binding {
	b := report.Binding{
		Namespace: pod.Namespace, Pod: pod.Name, UID: pod.UID, Claim: c.Name, CDINames: map[string]string{},
	}
	for i := range c.Devices {
		d := &c.Devices[i]
		b.CDINames[d.Request+"/"+d.Device] = d.CDIName().String()
		if d.GPU != "" {
			b.GPUs = append(b.GPUs, d.GPU)
		}
		if d.HCA != "" {
			b.HCAIDs, b.HCAs = append(b.HCAIDs, d.HCA), append(b.HCAs, names[d.HCA])
		}
	}
	return b
}

// Expiring returns pods that have entries and that the kubelet does not know any
// more; the API server may still show them.
func (v *View) Expiring() map[kubelet.Pod]bool {
	pods := make(map[kubelet.Pod]bool)
	for device := range v.node.Gone {
		if e := v.node.Entries[device]; e != nil && e.Owner != nil {
			pods[e.Owner.Pod] = true
		}
	}
	return pods
}

func newBinding(c kubelet.Container, entries []*allocate.Entry) report.Binding {
	a := report.Binding{
		Namespace: c.Namespace, Pod: c.Pod.Name, UID: c.UID, Container: c.Name, CDINames: make(map[string]string),
	}
	for _, e := range entries {
		a.CDINames[e.Resource] = e.Name().String()
		switch e.Kind {
		case cdi.GPU:
			a.GPUs = append(a.GPUs, e.IDs...)
		case cdi.SGPU:
			a.Sharing, a.Enforced = e.Sharing, e.Enforced
		case cdi.RDMA:
			a.HCAIDs = append(a.HCAIDs, e.Bound()...)
		case cdi.Claim: // No entry is of one.
		}
		if e.Class != "" && (a.Class == "" || allocate.Farther(e.Class, a.Class)) {
			a.Class = e.Class
		}
	}
	slices.Sort(a.GPUs)
	return a
}

// GPUs returns the shared GPUs with the amounts taken by known containers, without asking the
// kubelet.
func (v *View) GPUs() []quota.GPU { return v.node.SharedGPUs() }

// GPUsWithout returns the shared GPUs with the amounts taken by containers except the ones with
// GPUs chosen by a component.
func (v *View) GPUsWithout(by string) []quota.GPU { return v.node.SharedGPUsWithout(by) }

// Limits returns the limits of all containers that have shares and may be running.
func (v *View) Limits() []enforce.Limit {
	var all []enforce.Limit
	for _, e := range v.node.Entries {
		if e.Owner != nil && len(e.Shares) > 0 {
			all = append(all, limitOf(e, v.node.Inventory))
		}
	}
	for _, c := range v.node.Claims {
		all = slices.AppendSeq(all, maps.Values(c.Limits(v.node.Inventory.Machine)))
	}
	return all
}

// Assigned returns the HCA behind each device ID of an RDMA resource, or the GPU behind each ID of
// shares: the health of an ID in use is the health of its device.
func (v *View) Assigned(resource string) map[string]string {
	assigned := make(map[string]string)
	for _, e := range v.node.Entries {
		if v.node.Gone[e.Device] || e.Resource != resource {
			continue
		}
		for i, hca := range e.HCAs {
			if hca != "" {
				assigned[e.IDs[i]] = hca
			}
		}
		for i, share := range e.Shares {
			assigned[e.IDs[i]] = share.UUID
		}
	}
	return assigned
}

// UnderReplicas names, by HCA of an RDMA resource, a container that has it under a
// device ID that is a replica's, or that was given such an ID and has not started. It
// was allocated when pods shared the HCAs, which one pod has alone now.
func (v *View) UnderReplicas(resource string) map[string]string {
	held := make(map[string]string)
	for _, e := range v.node.Entries {
		if v.node.Gone[e.Device] || e.Resource != resource || e.Kind != cdi.RDMA {
			continue
		}
		hcas, by := inventory.DevicesOf(e.IDs), "a container that has not started"
		if e.Owner != nil {
			hcas, by = e.Bound(), e.Owner.String()
		}
		for _, hca := range hcas {
			if !slices.Contains(e.IDs, hca) && by > held[hca] {
				held[hca] = by
			}
		}
	}
	return held
}

// Resources returns those, with their kinds, that Allocate was called for and that containers
// may still have, whether or not they are in the configuration: a container starts
// only while its resources are served.
func (v *View) Resources() map[string]cdi.Kind {
	kinds := map[string]cdi.Kind{}
	for _, e := range v.node.Entries {
		kinds[e.Resource] = e.Kind
	}
	return kinds
}

// Elsewhere names the container that has a GPU otherwise than as this resource, empty if
// none: as another resource, that was renamed or is of another MIG strategy; or the GPU that
// it is cut from, its parent; or a partition of it, or one that overlaps it, when the GPU's
// partition mode has changed under the container. A container that has not started counts: its devices are allocated.
func (v *View) Elsewhere(resource, id, parent string) string {
	for _, a := range v.node.Unrecorded {
		if devices := inventory.DevicesOf(a.IDs); slices.Contains(devices, id) || slices.Contains(devices, parent) {
			return a.String() + " has it as " + a.Resource
		}
	}
	for _, e := range v.node.Entries {
		if e.Kind != cdi.GPU {
			continue
		}
		for _, held := range e.IDs {
			how := ""
			switch {
			case held == id && e.Resource != resource:
				how = "has it as " + e.Resource
			case held == id || v.node.Gone[e.Device]:
			case held == parent:
				how = "has the GPU that it is cut from"
			case machine.PartitionOf(held) == id:
				how = "has a partition of it, " + held
			case parent != "" && machine.PartitionOf(held) == parent && v.node.Inventory.Recut(parent, e.Modes[parent]):
				how = "has another partition of its GPU, " + held + " of mode " + e.Modes[parent]
			}
			switch {
			case how != "" && e.Owner == nil:
				return "a container that has not started " + how
			case how != "":
				return e.Owner.String() + " " + how
			}
		}
	}
	return ""
}
