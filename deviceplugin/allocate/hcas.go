package allocate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/discovery/capacity"
	"github.com/heddle-dev/heddle/topo/affinity"
)

// AllHCAs stands in for the HCA in the device IDs of a resource with count all:
// such an ID is worth every HCA of the resource.
const AllHCAs = "all"

// Member is an HCA that a resource is made of.
type Member struct {
	// Index is its place in the machine's HCAs, ID its identity.
	Index int
	ID    string
	// Unhealthy is the reason why it cannot be allocated now; empty if it can.
	Unhealthy string
}

// DeviceID returns the device ID of an HCA for one of the sharers of resource r. With
// one sharer it is the HCA's identity, a PCI address. Multus gives a network's CNI
// plugin the IDs that PodResources has for the pod, as they are, and sriov-cni,
// host-device and rdma-cni take the value as a PCI address (docs/concepts/hcas.md).
func DeviceID(r *config.RDMAResource, hca string, sharer int) string {
	if r.Sharers == 1 {
		return hca
	}
	return inventory.ReplicaID(hca, sharer)
}

// isExact reports whether device IDs are HCAs' own, see [DeviceID].
func isExact(ids []string) bool { return !slices.ContainsFunc(ids, inventory.IsReplica) }

// Members returns the HCAs of resource r, in the order of m.HCAs, with roles as
// corrected, with the health that the inventory has of them.
func Members(inv *inventory.Inventory, m *machine.Machine, r *config.RDMAResource) []Member {
	ids := m.HCAIDs()
	var members []Member
	for i := range m.HCAs {
		h := &m.HCAs[i]
		if selected, _ := inv.Config.RDMA.Select(m, r, h); selected {
			members = append(members, Member{Index: i, ID: ids[i], Unhealthy: unhealthy(inv, m, r, h)})
		}
	}
	return members
}

// unhealthy returns the reason why an HCA of resource r cannot be allocated now; empty if it can.
func unhealthy(inv *inventory.Inventory, m *machine.Machine, r *config.RDMAResource, h *machine.HCA) string {
	if inv.HCAs == nil {
		return capacity.Unhealthy(m, r, h, capacity.PortsDown)
	}
	return capacity.Unhealthy(m, r, h, inv.HCAUnhealthy)
}

// hcaUsage counts, by HCA identity, the device IDs of other pods that are bound
// to it.
type hcaUsage struct {
	// all counts the HCAs in use by every resource, here by one resource.
	all, here map[string]int
}

// hcaUsage derives which HCAs are in use, except through the device IDs of a: one pod holds these,
// so the HCAs bound to them are the pod's, from its init containers or its last run. Decisions
// later than the snapshot count too.
func (n *Node) hcaUsage(a *kubelet.Allocation) hcaUsage {
	holders := n.Snapshot.Holders()
	u := hcaUsage{all: make(map[string]int), here: make(map[string]int)}
	counted := make(map[[3]string]bool) // Two containers of a pod can hold one device ID.
	count := func(e *Entry, id, hca string) {
		own := e.Resource == a.Resource && slices.Contains(a.IDs, id)
		key := [3]string{e.Resource, id, hca}
		if hca == "" || e.Owner == nil || own || counted[key] {
			return
		}
		if n.Uncertain[*e.Owner] == "" && e.Decision <= n.Since && !holders.Has(e.Owner.Pod, e.Resource, id) {
			return
		}
		counted[key] = true
		u.all[hca]++
		if e.Resource == a.Resource {
			u.here[hca]++
		}
	}
	for _, e := range n.Entries {
		for i, hca := range e.HCAs {
			count(e, e.IDs[i], hca)
		}
		for _, hca := range e.Extra {
			count(e, e.IDs[0], hca)
		}
	}
	return u
}

// choose picks as many HCAs of a resource as the container has device IDs.
func (d *decision) choose(p part, r *config.RDMAResource) ([]pick, error) {
	members := Members(d.node.Inventory, d.topology.machine, r)
	used := d.node.hcaUsage(p.allocation)
	w, rejected := d.request(p, r, members, used)
	picks := d.topology.choose(w)
	if len(picks) < w.n {
		// Another of the container's resources may have taken the rest.
		w.kept = hcasOf(picks)
		for _, m := range members {
			if slices.Contains(hcasOf(d.hcas), m.Index) && m.Unhealthy == "" && used.here[m.ID] < r.Sharers {
				w.among = append(w.among, m.Index)
			}
		}
		picks = d.topology.choose(w)
	}
	return picks, d.check(p, r, w, picks, rejected)
}

// exact picks the HCAs that the device IDs of a container name, and no others: CNI
// plugins have moved these into the pod's network before the container starts.
func (d *decision) exact(p part, r *config.RDMAResource) ([]pick, error) {
	m, used := d.topology.machine, d.node.hcaUsage(p.allocation)
	for i, id := range d.ids {
		if used.here[id] > 0 && slices.Contains(p.entries[0].IDs, id) {
			return nil, fmt.Errorf("%s: another container still has %s", r.Name, m.HCAs[i].Name)
		}
	}
	w := &hcaRequest{n: len(p.entries[0].IDs), gpus: d.gpus}
	var rejected []string
	w.kept, rejected = d.named(p.entries[0].IDs, r)
	picks := d.topology.choose(w)
	return picks, d.check(p, r, w, picks, rejected)
}

// named returns the HCAs with some identities, and why others are excluded. The health of a resource
// without a configuration does not count.
func (d *decision) named(ids []string, r *config.RDMAResource) (hcas []int, rejected []string) {
	m := d.topology.machine
	for _, id := range ids {
		at := slices.Index(d.ids, id)
		if at < 0 {
			rejected = append(rejected, id+": it no longer exists")
			continue
		}
		if r != nil {
			if reason := unhealthy(d.node.Inventory, m, r, &m.HCAs[at]); reason != "" {
				rejected = append(rejected, m.HCAs[at].Name+": "+reason)
				continue
			}
		}
		hcas = append(hcas, at)
	}
	return hcas, rejected
}

// check returns why a container cannot have these picks, which are fewer than it
// requests, or warns about them.
func (d *decision) check(p part, r *config.RDMAResource, w *hcaRequest, picks []pick, rejected []string) error {
	if len(picks) < w.n {
		message := fmt.Sprintf("%s: %d HCAs requested, %d available", r.Name, w.n, len(picks))
		if len(rejected) > 0 {
			message += ": " + strings.Join(rejected, "; ")
		}
		if r.Count == config.CountStrict {
			never := w.n > len(Members(d.node.Inventory, d.topology.machine, r))
			return &RejectedError{d.container.Name, RejectedHCAs, message + " (count: strict)", never}
		}
		if len(picks) == 0 {
			return errors.New(message)
		}
		d.warn(p, picks, wellknown.EventFewerHCAs, message)
	}
	members := Members(d.node.Inventory, d.topology.machine, r)
	if message := d.far(members, w, picks); message != "" {
		d.warn(p, picks, wellknown.EventHCANotLocal, r.Name+": "+message)
	}
	return nil
}

// all returns the HCAs of a resource with count all: every one that has a device
// node, whatever its ports do.
func (d *decision) all(members []Member) []pick {
	var among []int
	for _, m := range members {
		if len(d.topology.machine.HCAs[m.Index].CharDevices.UVerbs) > 0 {
			among = append(among, m.Index)
		}
	}
	return d.topology.choose(&hcaRequest{n: len(among), gpus: d.gpus, among: among})
}

// request returns a choice to make for a part, and why HCAs are excluded from
// the candidates.
func (d *decision) request(
	p part, r *config.RDMAResource, members []Member, used hcaUsage,
) (w *hcaRequest, rejected []string) {
	first := p.entries[0]
	w = &hcaRequest{n: len(first.IDs), gpus: d.gpus, nominal: make(map[int]bool), used: make(map[int]int)}
	named := inventory.DevicesOf(first.IDs)
	for _, m := range members {
		w.used[m.Index] = used.all[m.ID]
		w.nominal[m.Index] = slices.Contains(named, m.ID)
		reason := m.Unhealthy
		if reason == "" && used.here[m.ID] >= r.Sharers {
			reason = fmt.Sprintf("%d containers share it already", used.here[m.ID])
		}
		if reason != "" {
			rejected = append(rejected, d.topology.machine.HCAs[m.Index].Name+": "+reason)
			continue
		}
		if slices.Contains(hcasOf(d.hcas), m.Index) {
			continue
		}
		w.among = append(w.among, m.Index)
		if slices.Contains(first.HCAs, m.ID) && len(w.kept) < w.n {
			w.kept = append(w.kept, m.Index)
		}
	}
	return w, rejected
}

// far names the GPUs that would have a near HCA if all were healthy and free, and
// now have none of this or an earlier resource. A machine where everything is far
// from everything is not at fault.
func (d *decision) far(members []Member, w *hcaRequest, picks []pick) string {
	if len(d.gpus) == 0 || len(picks) == 0 {
		return ""
	}
	ideal := *w
	ideal.kept, ideal.among = nil, make([]int, len(members))
	for i, m := range members {
		ideal.among[i] = m.Index
	}
	best := d.topology.choose(&ideal)
	var far []string
	for _, gpu := range d.gpus {
		got, could := d.topology.nearest(gpu, slices.Concat(d.hcas, picks)), d.topology.nearest(gpu, best)
		if got.class.Kind <= affinity.NODE && could.class.Kind > affinity.NODE {
			far = append(far, fmt.Sprintf("GPU %d has only %s (%s) and would have %s (%s)",
				d.topology.machine.GPUs[gpu].Index, got.class, d.topology.machine.HCAs[got.hca].Name,
				could.class, d.topology.machine.HCAs[could.hca].Name))
		}
	}
	return strings.Join(far, "; ")
}

// nearest returns the pick that is nearest to a GPU. picks is not empty.
func (t *topology) nearest(gpu int, picks []pick) pick {
	var best pick
	for i, p := range picks {
		if c := t.class(gpu, p.hca); i == 0 || c.Compare(best.class) > 0 {
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

// keep returns the HCAs of a resource that has left the configuration: those that
// the container has, or, if it never started, those that its device IDs name and
// that are healthy.
func (d *decision) keep(e *Entry) ([]pick, error) {
	hcas, rejected := d.named(e.Bound(), nil)
	if len(hcas)+len(rejected) == 0 {
		wanted := slices.DeleteFunc(inventory.DevicesOf(e.IDs), func(id string) bool { return id == AllHCAs })
		hcas, rejected = d.named(wanted, &config.RDMAResource{})
	}
	if len(hcas) > 0 {
		return d.topology.choose(&hcaRequest{gpus: d.gpus, kept: hcas}), nil
	}
	reason := "its devices name no HCA"
	if len(rejected) > 0 {
		reason = "no HCA is available: " + strings.Join(rejected, "; ")
	}
	return nil, fmt.Errorf("%s is not configured any more, and %s", e.Resource, reason)
}

// deal gives every device ID one of the devices: the one it had, else the one it
// names, else any; and returns those that are left over.
func deal(ids, had, devices []string) (dealt, extra []string) {
	dealt, extra = make([]string, len(ids)), slices.Clone(devices)
	give := func(i int, device string) {
		if at := slices.Index(extra, device); dealt[i] == "" && at >= 0 {
			dealt[i], extra = device, slices.Delete(extra, at, at+1)
		}
	}
	for i, device := range had {
		give(i, device)
	}
	for i, id := range ids {
		give(i, inventory.DeviceOf(id))
	}
	for i := range ids {
		if len(extra) > 0 {
			give(i, extra[0])
		}
	}
	if len(extra) == 0 {
		extra = nil
	}
	return dealt, extra
}
