package kubelet

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// StartGrace is how long a kubelet that has just started may not know all its
// pods yet.
const StartGrace = 30 * time.Second

// Pod refers to a pod. UID is empty where only PodResources named it, Namespace
// and Name where only the kubelet's checkpoint did.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// Same reports whether two references can be to one pod: no part that both have
// differs, and they share one that distinguishes pods.
func (p Pod) Same(q Pod) bool {
	named := p.Name != "" && q.Name != ""
	if named && (p.Namespace != q.Namespace || p.Name != q.Name) {
		return false
	}
	if p.UID != "" && q.UID != "" {
		return p.UID == q.UID
	}
	return named
}

// String is namespace/name, or the UID.
func (p Pod) String() string {
	if p.Name == "" {
		return "pod " + p.UID
	}
	return p.Namespace + "/" + p.Name
}

// Container refers to a container. The pod's name is Container.Pod.Name.
type Container struct {
	Pod
	Name string `json:"container"`
}

// Same reports whether two references can be to one container.
func (c Container) Same(d Container) bool { return c.Name == d.Name && c.Pod.Same(d.Pod) }

// String returns "container main of default/train".
func (c Container) String() string { return "container " + c.Name + " of " + c.Pod.String() }

// Allocation has the devices of one resource that one container holds.
type Allocation struct {
	Container
	Resource string
	// IDs are sorted, without repeats.
	IDs []string
	// CDINames are the CDI devices of Allocate's answer; Checkpointed reports
	// whether the kubelet's checkpoint had them.
	CDINames     []string
	Checkpointed bool
}

// Snapshot is who holds what by the kubelet at one moment. It is never changed.
type Snapshot struct {
	// Allocations holds the allocations of devices, Quantities the allocations of resources with
	// IDs that stand for amounts: hundreds for one container.
	Allocations, Quantities []Allocation
	// CheckpointErr is why the checkpoint is missing: then Allocations come from
	// PodResources alone, without ordinary init containers.
	CheckpointErr error

	pods []*podresources.PodResources
	// listed are the pods that PodResources lists, by namespace and name.
	listed   map[Pod]bool
	starting bool
}

// NewSnapshot makes a snapshot of PodResources alone.
func NewSnapshot(pods []*podresources.PodResources) *Snapshot { return newSnapshot(pods, nil, nil) }

func newSnapshot(pods []*podresources.PodResources, entries []entry, quantities []string) *Snapshot {
	s := &Snapshot{pods: pods, listed: make(map[Pod]bool, len(pods))}
	for _, p := range pods {
		s.listed[Pod{Namespace: p.GetNamespace(), Name: p.GetName()}] = true
	}
	all := join(pods, entries)
	s.Allocations = make([]Allocation, 0, len(all))
	for _, a := range all {
		if slices.Contains(quantities, a.Resource) {
			s.Quantities = append(s.Quantities, a)
		} else {
			s.Allocations = append(s.Allocations, a)
		}
	}
	return s
}

// Starting reports whether the kubelet has just started: it may not know its
// pods yet.
func (s *Snapshot) Starting() bool { return s.starting }

// Owners returns the allocations of exactly these IDs, which are sorted: one, or an
// ordinary init container and the container that takes its devices over.
func (s *Snapshot) Owners(resource string, ids []string) []Allocation {
	return s.where(func(a *Allocation) bool { return a.Resource == resource && slices.Equal(a.IDs, ids) })
}

// Of returns all allocations of one container, by resource.
func (s *Snapshot) Of(c Container) []Allocation {
	held := s.where(func(a *Allocation) bool { return a.Container == c })
	slices.SortFunc(held, func(p, q Allocation) int { return cmp.Compare(p.Resource, q.Resource) })
	return held
}

// where returns the allocations that match, of a few.
func (s *Snapshot) where(matches func(*Allocation) bool) (found []Allocation) {
	for i := range s.Allocations {
		if matches(&s.Allocations[i]) {
			found = append(found, s.Allocations[i])
		}
	}
	return found
}

// CPUs returns the processors that a container has to itself, which the kubelet's CPU
// manager allocated; none for one that shares them, and for an ordinary init
// container, which PodResources does not list.
func (s *Snapshot) CPUs(c Container) []int64 {
	for _, p := range s.pods {
		if p.GetNamespace() != c.Namespace || p.GetName() != c.Pod.Name {
			continue
		}
		for _, listed := range p.GetContainers() {
			if listed.GetName() == c.Name {
				return listed.GetCpuIds()
			}
		}
	}
	return nil
}

// CDINames returns the names that containers hold.
func (s *Snapshot) CDINames() map[string]bool {
	names := make(map[string]bool)
	for i := range s.Allocations {
		for _, name := range s.Allocations[i].CDINames {
			names[name] = true
		}
	}
	return names
}

// Holders are the pods that hold a device ID: one, unless the kubelet has
// forgotten another.
type Holders map[deviceID][]Pod

type deviceID struct{ resource, id string }

// Holders indexes the allocations by device ID.
func (s *Snapshot) Holders() Holders {
	all := make(Holders, len(s.Allocations))
	for i := range s.Allocations {
		a := &s.Allocations[i]
		for _, id := range a.IDs {
			key := deviceID{a.Resource, id}
			all[key] = append(all[key], a.Pod)
		}
	}
	return all
}

// Has reports whether a pod holds a device ID of a resource.
func (h Holders) Has(p Pod, resource, id string) bool {
	return slices.ContainsFunc(h[deviceID{resource, id}], p.Same)
}

// Holds reports whether a pod holds any device.
func (s *Snapshot) Holds(p Pod) bool {
	return slices.ContainsFunc(s.Allocations, func(a Allocation) bool { return a.Pod.Same(p) })
}

// Active reports whether PodResources lists this pod, and not another one of its
// name.
func (s *Snapshot) Active(p Pod) bool {
	return p.Name != "" && s.listed[Pod{Namespace: p.Namespace, Name: p.Name}] &&
		!slices.ContainsFunc(s.Allocations, func(a Allocation) bool {
			return a.Namespace == p.Namespace && a.Pod.Name == p.Name && !a.Pod.Same(p)
		})
}

// Gone reports whether a pod is in the checkpoint alone, and gone: the kubelet
// frees what a pod had when it ends, and writes the checkpoint when it gives the
// next pod something. While a kubelet starts, or without its checkpoint, no pod
// is gone.
func (s *Snapshot) Gone(p Pod) bool {
	return p.Name != "" && !s.starting && s.CheckpointErr == nil && !s.listed[Pod{Namespace: p.Namespace, Name: p.Name}]
}

// Forgotten makes a function that reports whether PodResources lists a container
// by its pod's name, and neither account has devices of it.
func (s *Snapshot) Forgotten() func(Container) bool {
	listed := make(map[Container]bool, len(s.pods))
	for _, p := range s.pods {
		for _, c := range p.GetContainers() {
			listed[Container{Pod{Namespace: p.GetNamespace(), Name: p.GetName()}, c.GetName()}] = true
		}
	}
	// The checkpoint alone knows no names, and PodResources no UIDs.
	byUID := func(c Container) Container { return Container{Pod{UID: c.UID}, c.Name} }
	byName := func(c Container) Container { return Container{Pod{Namespace: c.Namespace, Name: c.Pod.Name}, c.Name} }
	holds := make(map[Container]bool, 2*len(s.Allocations))
	for i := range s.Allocations {
		c := s.Allocations[i].Container
		if c.UID != "" {
			holds[byUID(c)] = true
		}
		if c.Pod.Name != "" {
			holds[byName(c)] = true
		}
	}
	return func(c Container) bool { return listed[byName(c)] && !holds[byName(c)] && !holds[byUID(c)] }
}

// join makes allocations of the kubelet's two accounts of who holds what.
//
// PodResources names pods and not their UIDs, and leaves ordinary init
// containers out ("if !podutil.IsRestartableInitContainer(&container) {
// continue }"). The checkpoint has every container and the UIDs, and keeps
// pods that are gone until the next allocation rewrites it, which drops them
// first. So PodResources is right about what it lists, and the checkpoint adds
// what no listed container contradicts.
func join(pods []*podresources.PodResources, entries []entry) []Allocation {
	l := indexListed(pods)
	// A UID belongs to the pod of any container that both accounts have.
	names, uids := make(map[string]Pod), make(map[Pod]string)
	var rest []*entry
	for i := range entries {
		e := &entries[i]
		at, ok := l.at[holdingKey(e.container, e.resource, e.ids)]
		if !ok {
			rest = append(rest, e)
			continue
		}
		a := &l.allocations[at]
		uids[Pod{Namespace: a.Namespace, Name: a.Pod.Name}] = e.uid
		a.UID, a.CDINames, a.Checkpointed = e.uid, e.cdiNames, true
		names[e.uid] = a.Pod
	}
	for i := range l.allocations {
		if a := &l.allocations[i]; a.UID == "" {
			a.UID = uids[a.Pod]
		}
	}
	all := l.allocations
	for _, e := range rest {
		pod, ok := names[e.uid]
		if !ok {
			pod = Pod{UID: e.uid}
		}
		if !l.contradicts(e, pod) {
			all = append(all, Allocation{
				Container: Container{pod, e.container}, Resource: e.resource, IDs: e.ids,
				CDINames: e.cdiNames, Checkpointed: true,
			})
		}
	}
	return all
}

// index has the allocations that PodResources lists. Both maps lead into them.
type index struct {
	allocations []Allocation
	// at is keyed by container, resource and IDs: within one resource an ID has one
	// holder at a time.
	at     map[[3]string]int
	holder map[deviceID]int
}

func holdingKey(container, resource string, ids []string) [3]string {
	return [3]string{container, resource, strings.Join(ids, "\x00")}
}

func indexListed(pods []*podresources.PodResources) *index {
	l := &index{
		allocations: make([]Allocation, 0, len(pods)),
		at:          make(map[[3]string]int, len(pods)), holder: make(map[deviceID]int, len(pods)),
	}
	for _, p := range pods {
		pod := Pod{Namespace: p.GetNamespace(), Name: p.GetName()}
		for _, c := range p.GetContainers() {
			held := heldBy(c)
			for _, resource := range slices.Sorted(maps.Keys(held)) {
				a := Allocation{Container: Container{pod, c.GetName()}, Resource: resource, IDs: SortIDs(held[resource])}
				l.at[holdingKey(c.GetName(), a.Resource, a.IDs)] = len(l.allocations)
				for _, id := range a.IDs {
					l.holder[deviceID{a.Resource, id}] = len(l.allocations)
				}
				l.allocations = append(l.allocations, a)
			}
		}
	}
	return l
}

// contradicts reports whether a listed pod, which is not the entry's, holds one
// of its IDs.
func (l *index) contradicts(e *entry, pod Pod) bool {
	return slices.ContainsFunc(e.ids, func(id string) bool {
		at, ok := l.holder[deviceID{e.resource, id}]
		return ok && !l.allocations[at].Pod.Same(pod)
	})
}

// heldBy returns a container's device IDs, by resource: PodResources has one ContainerDevices for
// each ID, because each has its own topology.
func heldBy(c *podresources.ContainerResources) map[string][]string {
	all := make(map[string][]string)
	for _, d := range c.GetDevices() {
		all[d.GetResourceName()] = append(all[d.GetResourceName()], d.GetDeviceIds()...)
	}
	return all
}

// SortIDs returns a sorted copy of device IDs without repeats.
func SortIDs(ids []string) []string {
	c := slices.Clone(ids)
	slices.Sort(c)
	return slices.Compact(c)
}
