package explain

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// maxHolders bounds the named holders of a group.
const maxHolders = 3

// plan is the question in the scheduler's own form: which plan would it make?
type plan struct {
	*question
	planner *planner.Planner
	// request has all pods, and waiting those without a node, in classes of pods that are alike.
	request planner.Request
	waiting planner.Gang
	classes []*fit.Class
	asks    []Ask
	// most is the class that asks for most GPUs, and counts how many of its pods each node of the
	// tree takes now.
	most   int
	counts []int32
}

func (q *question) plan(a *Answer, spec *gang.Spec, pods []*corev1.Pod) *plan {
	p := &plan{question: q}
	g := planner.Gang{Key: types.NamespacedName{Namespace: a.Namespace, Name: a.Name}, Spec: *spec}
	var gpusOf []int
	for _, pod := range pods {
		m := planner.Member{Pod: pod, Class: fit.ClassOf(pod, nil), GPUs: int(gpus(pod)), Node: pod.Spec.NodeName}
		g.Members = append(g.Members, m)
		if m.Node != "" {
			continue
		}
		p.waiting.Members = append(p.waiting.Members, m)
		at := slices.IndexFunc(p.classes, func(c *fit.Class) bool { return c.Key == m.Class.Key })
		if at < 0 {
			at = len(p.classes)
			p.classes, p.asks, gpusOf = append(p.classes, m.Class), append(p.asks, askOf(m.Class)), append(gpusOf, m.GPUs)
		}
		p.asks[at].Pods++
	}
	p.most = slices.Index(gpusOf, slices.Max(gpusOf))
	p.waiting.Spec, p.waiting.MinMember = *spec, len(p.waiting.Members)
	if spec.MinMember > 0 {
		p.waiting.MinMember = min(max(spec.MinMember-a.Bound, 1), len(p.waiting.Members))
	}
	g.MinMember = a.Bound + p.waiting.MinMember
	p.request.Gangs = []planner.Gang{g}
	p.planner, p.request.Nodes = q.scheduler()
	p.counts = make([]int32, p.tree.Len())
	for id := range p.counts {
		if n, obstacle := p.at(int32(id), p.classes[p.most]); obstacle == "" {
			free := (&fit.Query{}).Free(n)
			p.counts[id] = free.Count(p.classes[p.most])
		}
	}
	return p
}

func askOf(c *fit.Class) Ask {
	a := Ask{Requests: maps.Clone(c.Amounts)}
	delete(a.Requests, corev1.ResourcePods)
	return a
}

// at returns a node of the tree, and why it takes no such pod.
func (p *plan) at(id int32, c *fit.Class) (n *fit.Node, obstacle string) {
	n = p.nodes[p.tree.Name(id)]
	switch {
	case n == nil:
		return nil, "in the topology tree, and not in the cluster"
	case p.tree.Status(id) == v1alpha1.StatusNotReady:
		return n, "NotReady in the topology tree"
	}
	return n, c.Obstacle(n.Node)
}

// reasons returns why nodes take no pod of the class with most GPUs, the most frequent reasons
// first.
func (p *plan) reasons() []Reason {
	c := p.classes[p.most]
	by := map[string]Reason{}
	for id, count := range p.counts {
		if count > 0 {
			continue
		}
		n, why := p.at(int32(id), c)
		if why == "" {
			free := (&fit.Query{}).Free(n)
			name := free.Lacks(c.Amounts)
			why = fmt.Sprintf("%s: %s of %s free, asked for %s", name, quantity(name, free.Left(name)),
				quantity(name, n.Allocatable[name]), quantity(name, c.Amounts[name]))
		}
		by[why] = Reason{Reason: why, Nodes: append(by[why].Nodes, p.tree.Name(int32(id)))}
	}
	for _, r := range by {
		slices.Sort(r.Nodes)
	}
	return slices.SortedFunc(maps.Values(by), func(x, y Reason) int {
		return cmp.Or(cmp.Compare(len(y.Nodes), len(x.Nodes)), cmp.Compare(x.Reason, y.Reason))
	})
}

// rooms returns the groups, those with most room first; of these the smaller.
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
		room := Room{Name: g.Name, Kind: g.Kind, Of: p.asks[p.most].Pods}
		for _, name := range nodes {
			if id, ok := p.tree.ID(name); ok {
				room.Fit += int(p.counts[id])
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

// holders returns the largest holders of the scarcest resource that the pods request: an extended
// resource before cpu and memory.
func (p *plan) holders(nodes []string) []Holder {
	name := p.scarce()
	by := map[string]Holder{}
	for _, at := range nodes {
		n := p.nodes[at]
		if n == nil {
			continue
		}
		for _, pod := range n.Pods {
			amount := fit.Requests(pod)[name]
			if amount == 0 {
				continue
			}
			owner := holderOf(pod)
			h := by[owner]
			h.Name, h.Resource = owner, string(name)
			h.add(pod, amount, p.now)
			by[owner] = h
		}
	}
	all := slices.SortedFunc(maps.Values(by), func(x, y Holder) int {
		return cmp.Or(cmp.Compare(y.Amount, x.Amount), cmp.Compare(x.Name, y.Name))
	})
	return all[:min(len(all), maxHolders)]
}

// holderOf returns the gang that a pod is in, else the pod.
func holderOf(pod *corev1.Pod) string {
	if m, ok := gang.MemberOf(pod, gpus(pod)); ok {
		return m.Gang
	}
	return pod.Namespace + "/" + pod.Name
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

// scarce returns the resource for which holders are named: the first extended resource.
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

// fits describes what fits now.
func (p *plan) fits(a *Answer) []string {
	least := p.waiting.MinMember
	if group, ok := p.place(p.waiting, least); ok {
		if a.Rules != "" {
			return []string{fmt.Sprintf("%s, %s, but for the rules between pods: %s", these(least), group, a.Rules)}
		}
		out := []string{fmt.Sprintf("%s, %s", these(least), group)}
		if a.Pods >= a.MinMember {
			out = append(out, "No scheduler has tried since, or a rule that is not counted here keeps them off: "+
				"see what it reported")
		}
		return out
	}
	var out []string
	// Fewer pods never fit worse.
	if most := sort.Search(least, func(n int) bool {
		_, ok := p.place(p.waiting, n+1)
		return !ok
	}); most > 0 {
		group, _ := p.place(p.waiting, most)
		out = append(out, fmt.Sprintf("%s, %s", these(most), group))
	}
	if level := p.waiting.Spec.Required; level != "" {
		wider := p.waiting
		wider.Spec.Required = ""
		if group, ok := p.place(wider, least); ok {
			out = append(out, fmt.Sprintf("without the required level %s: %s, %s", level, these(least), group))
		}
	}
	anywhere := p.waiting
	anywhere.Members = slices.Clone(p.waiting.Members)
	for i := range anywhere.Members {
		free := *anywhere.Members[i].Pod
		free.Spec.NodeSelector, free.Spec.Affinity = nil, nil
		anywhere.Members[i].Class = fit.ClassOf(&free, nil)
	}
	if group, ok := p.place(anywhere, least); ok {
		out = append(out, fmt.Sprintf("without node selector and affinity: %s, %s", these(least), group))
	}
	return out
}

func these(pods int) string {
	if pods == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", pods)
}

// place returns where the first pods of a gang would go without the rules between pods.
func (p *plan) place(g planner.Gang, pods int) (where string, ok bool) {
	g.Members, g.MinMember = g.Members[:pods], pods
	group, err := p.planner.Room(&g, p.request.Nodes)
	switch {
	case err != nil:
		return "", false
	case group.Name == "":
		return "in several groups", true
	case group.Kind == v1alpha1.KindNode:
		return "on node " + group.Name, true
	}
	return "in " + group.Kind + " " + group.Name, true
}

// Victim is a gang, or a pod without a gang, that preemption would evict.
type Victim struct {
	Name     string `json:"name"`
	Pods     int    `json:"pods"`
	Priority int32  `json:"priority"`
}

// scheduler returns a planner for the cluster, and its nodes.
func (q *question) scheduler() (*planner.Planner, []*fit.Node) {
	all := sgpu.GPUs{corev1.ResourceName(wellknown.DefaultDomains().VendorKey("gpu"))}
	var nodes []*fit.Node
	for _, name := range slices.Sorted(maps.Keys(q.nodes)) {
		nodes = append(nodes, q.nodes[name])
		for name := range q.nodes[name].Status.Allocatable {
			if isGPU(name) && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all[1:])
	return planner.New(topologyclient.Of(q.groups), gang.Place, all), nodes
}

// preempt finds what the scheduler would evict to make room.
func (p *plan) preempt(ctx context.Context, c *Cluster) (victims []Victim) {
	known := planner.Cluster{GangOf: map[types.UID]types.NamespacedName{}}
	for i := range c.Budgets {
		known.Budgets = append(known.Budgets, &c.Budgets[i])
	}
	d := wellknown.DefaultDomains()
	for i := range c.Pods {
		if spec, err := gang.Read(&c.Pods[i], d); err == nil {
			known.GangOf[c.Pods[i].UID] = together(&spec)
		}
	}
	for _, pod := range p.planner.Preempt(ctx, &p.request, &known).Leaving {
		name := holderOf(pod)
		at := slices.IndexFunc(victims, func(v Victim) bool { return v.Name == name })
		if at < 0 {
			at = len(victims)
			victims = append(victims, Victim{Name: name, Priority: schedulehelpers.PodPriority(pod)})
		}
		victims[at].Pods++
		victims[at].Priority = max(victims[at].Priority, schedulehelpers.PodPriority(pod))
	}
	return victims
}

// together returns one name for all gangs that run together or not at all.
func together(spec *gang.Spec) types.NamespacedName {
	return slices.MinFunc(append([]types.NamespacedName{spec.Key}, spec.Groups...), func(x, y types.NamespacedName) int {
		return cmp.Compare(x.String(), y.String())
	})
}
