package allocate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// Kinds of rejections.
const (
	// RejectedRequest: what the pod requests makes no sense, on any node.
	RejectedRequest = "request"
	// RejectedAllocation: a scheduler's choice is not for this container, this
	// node or the GPUs that it has.
	RejectedAllocation = "allocation"
	// RejectedUnscheduled: no scheduler chose a GPU, and the configuration wants
	// one that does.
	RejectedUnscheduled = "unscheduled"
	// RejectedFull: the GPU would be over-committed.
	RejectedFull = "full"
	// RejectedHCAs: the pod requests more HCAs than exist, of a resource with count strict.
	RejectedHCAs = "hcas"
	// RejectedChannels: the pod asks for IMEX channels that it cannot have on this node.
	RejectedChannels = "imex"
	// RejectedDirty: a process or memory of another pod is still on a GPU.
	RejectedDirty = "dirty"
)

// RejectedError explains why a container gets no share, or not its HCAs or IMEX channels, or waits for its GPUs.
type RejectedError struct {
	Container, Kind, Reason string
	// Never: the node cannot give it that, however much of it is free.
	Never bool
}

func (e *RejectedError) Error() string {
	what := "GPU"
	switch e.Kind {
	case RejectedHCAs:
		what = "HCA"
	case RejectedChannels:
		what = "IMEX channel"
	case RejectedDirty:
		return e.Reason
	}
	return "container " + e.Container + " gets no " + what + ": " + e.Reason
}

// shareRequest is a container that holds device IDs of shares and has no shares.
type shareRequest struct {
	quota.Request
	container kubelet.Container
	phase     quota.Phase
	ids       []string
	entries   []*Entry
	runAs     *int64
	// order is the container's in its pod's list.
	order int
}

func (r *shareRequest) reject(kind, format string, args ...any) error {
	return &RejectedError{r.container.Name, kind, fmt.Sprintf(format, args...), kind == RejectedRequest}
}

// shares decides which GPUs the containers of a pod share when one of them
// starts, for all of them or for none: a pod that has one of its GPUs and waits for
// the next would keep both from others. Containers that have shares keep them,
// whatever the pod's annotations have become. It returns the entries that this
// changes; pod is nil if it is not known.
func (n *Node) shares(starts kubelet.Container, pod *corev1.Pod) ([]*Entry, error) {
	waiting, err := n.waiting(starts)
	if err != nil || len(waiting) == 0 {
		return nil, err
	}
	if pod == nil {
		return nil, fmt.Errorf("%s is not known yet, nor are its requests", starts.Pod)
	}
	for i := range waiting {
		if err := n.parseRequest(&waiting[i], pod); err != nil {
			return nil, err
		}
	}
	// What runs to the end has the first choice; init containers follow it.
	slices.SortStableFunc(waiting, func(x, y shareRequest) int {
		return cmp.Or(compareBool(x.phase.Terminates(), y.phase.Terminates()), cmp.Compare(x.order, y.order))
	})
	var changed []*Entry
	u := n.usage()
	for i := range waiting {
		r := &waiting[i]
		shares, by, err := n.share(r, pod, u)
		if err != nil {
			return nil, err
		}
		for _, old := range r.entries {
			e := *old
			e.Owner, e.Phase, e.Policy, e.By = &r.container, r.phase, string(r.Policy), by
			e.Shares, e.RunAs, e.Priority = dealShares(e.IDs, shares), r.runAs, schedulehelpers.PodPriority(pod)
			changed = append(changed, &e)
		}
		u.add(changed[len(changed)-1])
	}
	return changed, nil
}

// waiting returns the containers of a pod that hold device IDs of shares and have no
// shares, when one of them starts. The others may run on GPUs that
// nothing but their device IDs names; the one that starts does not.
func (n *Node) waiting(starts kubelet.Container) ([]shareRequest, error) {
	var waiting []shareRequest
	for i := range n.Snapshot.Allocations {
		a := &n.Snapshot.Allocations[i]
		unrecorded := func(u kubelet.Allocation) bool { return u.Same(a.Container) }
		if !a.Pod.Same(starts.Pod) || !n.HasShares(a) ||
			a.Name != starts.Name && slices.ContainsFunc(n.Unrecorded, unrecorded) {
			continue
		}
		entries, err := n.entriesOf(a)
		if err != nil {
			return nil, err
		}
		has := func(e *Entry) bool { return e.HasShares(a.Container) }
		if len(entries) == 0 || slices.ContainsFunc(entries, has) {
			continue
		}
		c := kubelet.Container{Pod: starts.Pod, Name: a.Name}
		c.UID = cmp.Or(a.UID, starts.UID)
		waiting = append(waiting, shareRequest{container: c, ids: a.IDs, entries: entries})
	}
	return waiting, nil
}

// parseRequest finds out what a container requests.
func (n *Node) parseRequest(r *shareRequest, pod *corev1.Pod) error {
	spec, phase := quota.ContainerOf(pod, r.container.Name)
	if spec == nil {
		return fmt.Errorf("%s as it is known has no container %s", r.container.Pod, r.container.Name)
	}
	r.phase, r.runAs = phase, runAs(pod, spec)
	r.order = slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == spec.Name })
	request, err := quota.ParseRequest(spec.Resources.Limits, Annotations(pod, n.Inventory), n.Inventory.Config)
	switch {
	case errors.Is(err, quota.ErrNoShare):
		return fmt.Errorf("container %s holds %d device IDs of shares and %w", spec.Name, len(r.ids), err)
	case err != nil:
		return r.reject(RejectedRequest, "%s", err)
	case request.GPUs != len(r.ids):
		return fmt.Errorf("container %s holds %d device IDs of shares and requests %d GPUs",
			spec.Name, len(r.ids), request.GPUs)
	}
	r.Request = request
	return nil
}

// runAs returns the user of a container as far as its pod names one; nil if its image
// does.
func runAs(pod *corev1.Pod, c *corev1.Container) *int64 {
	if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
		return new(*c.SecurityContext.RunAsUser)
	}
	if pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.RunAsUser != nil {
		return new(*pod.Spec.SecurityContext.RunAsUser)
	}
	return nil
}

// share gives a container its shares, and names who chose the GPUs.
func (n *Node) share(r *shareRequest, pod *corev1.Pod, u *usage) (shares []allocation.Share, by string, err error) {
	gpus, nodes := u.fill(&r.container, r.phase), n.processorNodes(r.container)
	r.admitDraining(gpus)
	uuids, by, err := Scheduled(pod, r.container.Name, &r.Request, n.Name, n.Inventory)
	switch {
	case err != nil:
		return nil, "", r.reject(RejectedAllocation, "%s", err)
	case uuids == nil:
		uuids, err = n.place(r, gpus, nodes, u)
		by = allocation.ByNode
		if err != nil {
			return nil, "", err
		}
	}
	if d := n.Inventory.Config.Domains; by == allocation.ByHAMi &&
		pod.Annotations[d.SGPUQoSPolicy()] == "" && pod.Annotations[wellknown.SGPUQoSPolicyAlias] == "" {
		r.adoptPolicy(gpus, uuids)
	}
	for _, uuid := range uuids {
		i := slices.IndexFunc(gpus, func(g quota.GPU) bool { return g.UUID == uuid })
		if i < 0 {
			return nil, "", r.reject(RejectedAllocation, "%s chose GPU %s, which this node does not share", by, uuid)
		}
		reason := gpus[i].Reject(&r.Request)
		if by == allocation.ByHAMi && reason.Excluded() {
			return nil, "", r.reject(RejectedRequest,
				"HAMi chose a GPU that the pod's annotations exclude: %s; HAMi reads %s and %s only",
				reason, wellknown.UseGPUUUIDAlias, wellknown.NoUseGPUUUIDAlias)
		}
		if !reason.None() {
			return nil, "", r.reject(RejectedFull, "%s chose a GPU that is not available: %s", by, reason)
		}
		shares = append(shares, gpus[i].Share(&r.Request))
	}
	return shares, by, nil
}

// adoptPolicy gives a container without a QoS policy in its pod that of the consumers of
// the first GPU that has some. HAMi 2.6 knows no policies: it would choose that GPU
// again and again.
func (r *shareRequest) adoptPolicy(gpus []quota.GPU, uuids []string) {
	for _, uuid := range uuids {
		for i := range gpus {
			if g := &gpus[i]; g.UUID == uuid && g.Policy != "" {
				r.Policy = g.Policy
				return
			}
		}
	}
}

// admitDraining lets a container start on GPUs that are about to change their
// mode if its device IDs name them. They wait for it to end in any case, and
// where all of a node's GPUs change it could go nowhere else.
func (r *shareRequest) admitDraining(gpus []quota.GPU) {
	for i := range gpus {
		if g := &gpus[i]; g.Draining && r.names(g.UUID) {
			g.Unhealthy = ""
		}
	}
}

// names reports whether the container's device IDs name a GPU.
func (r *shareRequest) names(uuid string) bool {
	return slices.ContainsFunc(r.ids, func(id string) bool { return inventory.DeviceOf(id) == uuid })
}

// place chooses GPUs where no scheduler did: those that containers of its pod
// had or will have at another time, then those on the NUMA nodes of its processors,
// then as configured, and of equal ones those that the device IDs name.
func (n *Node) place(r *shareRequest, gpus []quota.GPU, nodes []int, u *usage) ([]string, error) {
	c := n.Inventory.Config
	if c.SGPU.Unscheduled == config.UnscheduledReject {
		return nil, r.reject(RejectedUnscheduled, "no scheduler chose a GPU, and sgpu.unscheduled is %s", c.SGPU.Unscheduled)
	}
	// The first of equal GPUs wins.
	ordered := slices.SortedStableFunc(slices.Values(gpus), func(x, y quota.GPU) int {
		return compareBool(r.names(y.UUID), r.names(x.UUID))
	})
	near := slices.DeleteFunc(slices.Clone(ordered), func(g quota.GPU) bool { return far(nodes, g.NUMA) })
	own := slices.DeleteFunc(slices.Clone(ordered), func(g quota.GPU) bool {
		return !slices.ContainsFunc(u.consumers, func(x consumer) bool {
			return x.Share.UUID == g.UUID && x.Pod.Same(r.container.Pod) && !x.Phase.Overlaps(r.phase)
		})
	})
	for _, among := range [][]quota.GPU{own, near, ordered} {
		places, ok := quota.Place(among, &r.Request, c.SGPU.Placement, nil)
		if !ok {
			continue
		}
		uuids := make([]string, len(places))
		for i, place := range places {
			uuids[i] = among[place].UUID
		}
		return uuids, nil
	}
	empty := slices.Clone(n.Inventory.Shared)
	for i := range empty {
		empty[i].Unhealthy, empty[i].Draining = "", false
	}
	_, ever := quota.Place(empty, &r.Request, c.SGPU.Placement, nil)
	return nil, &RejectedError{r.container.Name, RejectedFull, quota.Explain(gpus, &r.Request), !ever}
}

// dealShares puts the shares into the order of the device IDs.
func dealShares(ids []string, shares []allocation.Share) []allocation.Share {
	byGPU, uuids := make(map[string]allocation.Share, len(shares)), make([]string, len(shares))
	for i, s := range shares {
		byGPU[s.UUID], uuids[i] = s, s.UUID
	}
	dealt := make([]allocation.Share, len(ids))
	in, _ := deal(ids, nil, uuids)
	for i, uuid := range in {
		dealt[i] = byGPU[uuid]
	}
	return dealt
}

// processorNodes returns the sorted NUMA nodes of a container's exclusive processors; none without
// such processors, or if their nodes are unknown. The kubelet's topology manager aligned them with
// the device IDs, which do not name the GPU of a share.
func (n *Node) processorNodes(c kubelet.Container) []int {
	if n.Snapshot == nil {
		return nil
	}
	var nodes []int
	numa := n.Inventory.Machine.CPU.NUMA
	for _, cpu := range n.Snapshot.CPUs(c) {
		for i := range numa {
			if numa[i].Has(cpu) && !slices.Contains(nodes, numa[i].ID) {
				nodes = append(nodes, numa[i].ID)
			}
		}
	}
	slices.Sort(nodes)
	return nodes
}

// far reports whether a device is known to be of a NUMA node outside of nodes;
// nothing is far from a container without exclusive processors.
func far(nodes []int, device int) bool {
	return len(nodes) > 0 && device >= 0 && !slices.Contains(nodes, device)
}

func numbers(nodes []int) string {
	texts := make([]string, len(nodes))
	for i, node := range nodes {
		texts[i] = strconv.Itoa(node)
	}
	return strings.Join(texts, ", ")
}

// numaWarnings are about shares that were decided and are far from the processors
// that their container has to itself.
func (n *Node) numaWarnings(decided []*Entry) []Warning {
	var all []Warning
	for _, e := range decided {
		nodes := n.processorNodes(*e.Owner)
		for _, share := range e.Shares {
			at := slices.IndexFunc(n.Inventory.Shared, func(g quota.GPU) bool { return g.UUID == share.UUID })
			if at < 0 || !far(nodes, n.Inventory.Shared[at].NUMA) {
				continue
			}
			g := &n.Inventory.Shared[at]
			all = append(all, Warning{wellknown.EventSharesOnOtherNUMANode, fmt.Sprintf(
				"container %s has a share of GPU %d, which is of NUMA node %d, and the container's processors are of %s",
				e.Owner.Name, g.Index, g.NUMA, numbers(nodes))})
		}
	}
	return all
}
