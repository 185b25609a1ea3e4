package binder

import (
	"maps"
	"slices"
	"strings"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Pod names a pod. UID is empty where only PodResources named it, Namespace
// and Name where only the checkpoint did.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

// same tells whether two names can be of one pod: no part that both have
// differs, and they share one that tells pods apart.
func (p Pod) same(q Pod) bool {
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

// owner is a container that holds devices.
type owner struct {
	Pod
	Container string `json:"container"`
}

// holding is what one container holds of one resource.
type holding struct {
	owner
	resource string
	// ids are sorted, without repeats.
	ids []string
	// names are the CDI devices of Allocate's answer; known tells whether the
	// checkpoint had them.
	names []string
	known bool
}

// place is where two sources speak of the same thing: within one resource an
// ID has one holder at a time.
type place struct{ container, resource, ids string }

func placeOf(container, resource string, ids []string) place {
	return place{container, resource, strings.Join(ids, "\x00")}
}

// holdings joins the kubelet's two accounts of who holds what.
//
// PodResources names pods and not their UIDs, and leaves ordinary init
// containers out ("if !podutil.IsRestartableInitContainer(&container) {
// continue }"). The checkpoint has every container and the UIDs, and keeps
// pods that are gone until the next allocation rewrites it, which drops them
// first. So PodResources is right about what it lists, and the checkpoint adds
// what no listed container contradicts.
func holdings(pods []*podresources.PodResources, entries []entry) []holding {
	l := list(pods)
	// A UID belongs to the pod of any container that both accounts have.
	names := make(map[string]Pod)
	var rest []*entry
	for i := range entries {
		e := &entries[i]
		at, ok := l.at[placeOf(e.container, e.resource, e.ids)]
		if !ok {
			rest = append(rest, e)
			continue
		}
		h := &l.holdings[at]
		h.UID, h.names, h.known = e.uid, e.names, true
		names[e.uid] = h.Pod
	}
	for i := range l.holdings {
		if h := &l.holdings[i]; h.UID == "" {
			h.UID = uidOf(h.Pod, names)
		}
	}
	all := l.holdings
	for _, e := range rest {
		pod, ok := names[e.uid]
		if !ok {
			pod = Pod{UID: e.uid}
		}
		if !l.contradicts(e, pod) {
			all = append(all, holding{
				owner: owner{pod, e.container}, resource: e.resource, ids: e.ids, names: e.names, known: true,
			})
		}
	}
	return all
}

// listing is PodResources' account. Both maps lead into holdings.
type listing struct {
	holdings []holding
	at       map[place]int
	// holder is by resource and ID.
	holder map[[2]string]int
}

func list(pods []*podresources.PodResources) *listing {
	l := &listing{at: make(map[place]int), holder: make(map[[2]string]int)}
	for _, p := range pods {
		pod := Pod{Namespace: p.GetNamespace(), Name: p.GetName()}
		for _, c := range p.GetContainers() {
			held := collect(c)
			for _, resource := range slices.Sorted(maps.Keys(held)) {
				h := holding{owner: owner{pod, c.GetName()}, resource: resource, ids: held[resource]}
				l.at[placeOf(c.GetName(), resource, h.ids)] = len(l.holdings)
				for _, id := range h.ids {
					l.holder[[2]string{resource, id}] = len(l.holdings)
				}
				l.holdings = append(l.holdings, h)
			}
		}
	}
	return l
}

// contradicts tells whether a listed pod, which is not the entry's, holds one
// of its IDs.
func (l *listing) contradicts(e *entry, pod Pod) bool {
	for _, id := range e.ids {
		if at, ok := l.holder[[2]string{e.resource, id}]; ok && !l.holdings[at].same(pod) {
			return true
		}
	}
	return false
}

// collect gathers a container's IDs by resource: PodResources has one
// ContainerDevices for each ID, because each has a topology of its own.
func collect(c *podresources.ContainerResources) map[string][]string {
	held := make(map[string][]string)
	for _, d := range c.GetDevices() {
		held[d.GetResourceName()] = append(held[d.GetResourceName()], d.GetDeviceIds()...)
	}
	for resource, ids := range held {
		held[resource] = sorted(ids)
	}
	return held
}

func uidOf(p Pod, names map[string]Pod) string {
	for uid, known := range names {
		if known.Namespace == p.Namespace && known.Name == p.Name {
			return uid
		}
	}
	return ""
}

// sorted is a sorted copy without repeats.
func sorted(ids []string) []string {
	c := slices.Clone(ids)
	slices.Sort(c)
	return slices.Compact(c)
}
