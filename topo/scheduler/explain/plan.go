package explain

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/gang/rank"
	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// maxHolders is how many holders of a group are named.
const maxHolders = 3

// plan is the pods that wait, in classes of pods that are alike.
type plan struct {
	*question
	classes []*fit.Class
	// first is a pod of each class, and count how many it has.
	first []*corev1.Pod
	count []int
	// most is the class that asks for most GPUs.
	most int
	// counts is how many pods of each class each node of the tree takes.
	counts [][]int32
	gang   placement.Gang
}

func (q *question) plan(a *Answer, spec *gang.Spec, wait []*corev1.Pod) *plan {
	p := &plan{question: q}
	p.gang = placement.Gang{
		Slice: spec.GroupSize, Require: spec.Required, Prefer: spec.Preferred, MinMember: len(wait),
	}
	if spec.MinMember > 0 {
		p.gang.MinMember = min(max(spec.MinMember-a.Bound, 1), len(wait))
	}
	for _, pod := range wait {
		class := fit.ClassOf(pod, nil)
		at := slices.IndexFunc(p.classes, func(c *fit.Class) bool { return c.Key == class.Key })
		if at < 0 {
			at = len(p.classes)
			p.classes, p.first, p.count = append(p.classes, class), append(p.first, pod), append(p.count, 0)
		}
		p.count[at]++
	}
	for i := range p.classes {
		if gpus(p.first[i]) > gpus(p.first[p.most]) {
			p.most = i
		}
	}
	p.counts = p.countAll(p.classes)
	return p
}

// countAll is how many pods of each class every node of the tree takes now.
func (p *plan) countAll(classes []*fit.Class) [][]int32 {
	counts := make([][]int32, len(classes))
	for i, c := range classes {
		counts[i] = make([]int32, p.tree.Len())
		for id := range counts[i] {
			if n, obstacle := p.at(int32(id), c); obstacle == "" {
				free := fit.FreeOf(n, nil, &fit.Asker{})
				counts[i][id] = free.Count(c)
			}
		}
	}
	return counts
}

// at is a node of the tree, and why it takes no such pod.
func (p *plan) at(id int32, c *fit.Class) (n *node, obstacle string) {
	n = p.nodes[p.tree.Name(id)]
	switch {
	case n == nil:
		return nil, "in the topology tree, and not in the cluster"
	case p.tree.Status(id) == v1alpha1.StatusNotReady:
		return n, "NotReady in the topology tree"
	}
	return n, c.Obstacle(n.node)
}

func (p *plan) asks() []Ask {
	asks := make([]Ask, len(p.classes))
	for i, c := range p.classes {
		asks[i] = Ask{Pods: p.count[i], Requests: map[string]int64{}}
		for name, value := range c.Amounts {
			asks[i].Requests[string(name)] = value
		}
	}
	return asks
}

// reasons are why nodes take no pod of the class with most GPUs.
func (p *plan) reasons() []Reason {
	c := p.classes[p.most]
	by := map[string]*Reason{}
	for id := range p.counts[p.most] {
		if p.counts[p.most][id] > 0 {
			continue
		}
		n, why := p.at(int32(id), c)
		if why == "" {
			free := fit.FreeOf(n, nil, &fit.Asker{})
			name := free.Lacks(c.Amounts)
			why = fmt.Sprintf("%s: %s of %s free, asked for %s", name, quantity(name, free.Left(name)),
				quantity(name, n.GetAllocatable().GetScalarResources()[name]), quantity(name, max(c.Amounts[name], 1)))
		}
		if by[why] == nil {
			by[why] = &Reason{Reason: why}
		}
		by[why].Nodes = append(by[why].Nodes, p.tree.Name(int32(id)))
	}
	all := make([]Reason, 0, len(by))
	for _, r := range by {
		slices.Sort(r.Nodes)
		all = append(all, *r)
	}
	slices.SortFunc(all, byNodes)
	return all
}

// rooms are the groups, those with most room first; of these the smaller.
func (p *plan) rooms() []Room {
	type sized struct {
		Room
		nodes []string
	}
	var all []sized
	var walk func(*v1alpha1.Group) []string
	walk = func(g *v1alpha1.Group) (nodes []string) {
		if g.Kind == v1alpha1.KindNode {
			return []string{g.Name}
		}
		for i := range g.Child {
			nodes = append(nodes, walk(&g.Child[i])...)
		}
		room := Room{Name: g.Name, Kind: g.Kind, Of: p.count[p.most]}
		for _, name := range nodes {
			if id, ok := p.tree.ID(name); ok {
				room.Fit += int(p.counts[p.most][id])
			}
		}
		room.Fit = min(room.Fit, room.Of)
		all = append(all, sized{room, nodes})
		return nodes
	}
	for i := range p.groups {
		walk(&p.groups[i])
	}
	slices.SortStableFunc(all, func(x, y sized) int {
		return cmp.Or(cmp.Compare(y.Fit, x.Fit), cmp.Compare(len(x.nodes), len(y.nodes)), cmp.Compare(x.Name, y.Name))
	})
	rooms := make([]Room, len(all))
	for i := range all {
		if rooms[i] = all[i].Room; rooms[i].Fit < rooms[i].Of {
			rooms[i].Holders = p.holders(all[i].nodes)
		}
	}
	return rooms
}

// holders are what has most of the resource that the pods ask for and that is
// scarcest: an extended one before cpu and memory.
func (p *plan) holders(nodes []string) []Holder {
	name := p.scarce()
	by := map[string]*Holder{}
	for _, at := range nodes {
		n := p.nodes[at]
		if n == nil {
			continue
		}
		for _, info := range n.pods {
			pod := info.GetPod()
			amount := fit.Requests(pod)[name]
			if amount == 0 {
				continue
			}
			owner := pod.Namespace + "/" + pod.Name
			if m, ok := gang.MemberOf(pod, gpus(pod)); ok {
				owner = m.Gang
			}
			if by[owner] == nil {
				by[owner] = &Holder{Name: owner, Resource: string(name)}
			}
			by[owner].add(pod, amount, p.now)
		}
	}
	all := make([]Holder, 0, len(by))
	for _, h := range by {
		all = append(all, *h)
	}
	slices.SortFunc(all, func(x, y Holder) int {
		return cmp.Or(cmp.Compare(y.Amount, x.Amount), cmp.Compare(x.Name, y.Name))
	})
	return all[:min(len(all), maxHolders)]
}

func (h *Holder) add(pod *corev1.Pod, amount int64, now time.Time) {
	h.Amount += amount
	if owner := metav1.GetControllerOf(pod); owner != nil {
		h.Owner = owner.Kind + "/" + owner.Name
	}
	began := now
	if t := pod.Status.StartTime; t != nil {
		began = wellknown.Moment(t.Time)
	}
	if h.Since.IsZero() || began.Before(h.Since) {
		h.Since = began
	}
	if end := wellknown.Moment(fit.EndOf(pod, began)); end.After(h.Until) {
		h.Until = end
	}
}

// scarce is the resource whose holders are named: the first extended one.
func (p *plan) scarce() corev1.ResourceName {
	amounts := p.classes[p.most].Amounts
	name := corev1.ResourceCPU
	for candidate := range amounts {
		if strings.Contains(string(candidate), "/") && (name == corev1.ResourceCPU || candidate < name) {
			name = candidate
		}
	}
	return name
}

// fits is what there is room for now.
func (p *plan) fits(a *Answer) []string {
	if group, ok := p.place(p.gang, p.counts, p.gang.MinMember); ok {
		if a.Rules != "" {
			return []string{fmt.Sprintf("%s, %s, but for the rules between pods: %s", these(p.gang.MinMember), group, a.Rules)}
		}
		out := []string{fmt.Sprintf("%s, %s", these(p.gang.MinMember), group)}
		if a.Pods >= a.MinMember {
			out = append(out, "No scheduler has tried since, or a rule that is not counted here keeps them off: "+
				"see what it reported")
		}
		return out
	}
	var out []string
	// Fewer pods never fit worse.
	if most := sort.Search(p.gang.MinMember, func(n int) bool {
		_, ok := p.place(p.gang, p.counts, n+1)
		return !ok
	}); most > 0 {
		group, _ := p.place(p.gang, p.counts, most)
		out = append(out, fmt.Sprintf("%s, %s", these(most), group))
	}
	if p.gang.Require != "" {
		wider := p.gang
		wider.Require = ""
		if group, ok := p.place(wider, p.counts, p.gang.MinMember); ok {
			out = append(out, fmt.Sprintf("without the required level %s: %s, %s",
				p.gang.Require, these(p.gang.MinMember), group))
		}
	}
	anywhere := make([]*fit.Class, len(p.classes))
	for i, pod := range p.first {
		free := pod.DeepCopy()
		free.Spec.NodeSelector, free.Spec.Affinity = nil, nil
		anywhere[i] = fit.ClassOf(free, nil)
	}
	if group, ok := p.place(p.gang, p.countAll(anywhere), p.gang.MinMember); ok {
		out = append(out, fmt.Sprintf("without node selector and affinity: %s, %s", these(p.gang.MinMember), group))
	}
	return out
}

func these(pods int) string {
	if pods == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", pods)
}

// place plans for the first pods, and returns where they would be.
func (p *plan) place(g placement.Gang, counts [][]int32, pods int) (where string, ok bool) {
	g.MinMember = pods
	g.Tasks = nil
	for i, n := range p.count {
		if n = min(n, pods); n > 0 {
			g.Tasks = append(g.Tasks, placement.Task{
				Name: rank.Task(p.first[i]), Class: i, Pods: n, GPUs: int(gpus(p.first[i])),
			})
		}
		pods -= n
	}
	got, err := placement.Place(p.tree, &g, &placement.Capacity{Fit: counts})
	switch {
	case err != nil:
		return "", false
	case got.Group.Name == "":
		return "in several groups", true
	case got.Group.Kind == v1alpha1.KindNode:
		return "on node " + got.Group.Name, true
	}
	return "in " + got.Group.Kind + " " + got.Group.Name, true
}
