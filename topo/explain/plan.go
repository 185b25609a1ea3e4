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
	"k8s.io/apimachinery/pkg/util/intstr"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/claims"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

// maxHolders bounds the named holders of a group.
const maxHolders = 3

// question is the question in the scheduler's own form: which plan would it make?
type question struct {
	now     time.Time
	planner *planner.Planner
	// nodes are the cluster's, and status has these and the topology tree's, with their state in the tree.
	nodes  map[string]*planner.Node
	status map[string]string
	// request has all pods, and waiting those without a node, in classes of pods that are alike.
	request planner.Request
	waiting planner.Gang
	classes []*planner.Class
	pods    map[*planner.Class]int
	// most is the class that asks for most GPUs, and room the number of its pods that each node takes.
	most *planner.Class
	room map[string]int
	// devices has the nodes' devices for claims. fault explains why the pods' claims cannot be read.
	devices *claims.Nodes
	claims  lister
	fault   string
}

func newQuestion(
	ctx context.Context, c *Cluster, a *Answer, spec *gang.Spec, pods []*corev1.Pod, now time.Time,
) *question {
	q := &question{
		now: now, nodes: map[string]*planner.Node{}, status: map[string]string{}, room: map[string]int{},
		pods: map[*planner.Class]int{}, devices: claims.New(ctx),
	}
	devices, all := c.devices()
	q.claims = all
	q.devices.Update(devices)
	on := map[string][]*corev1.Pod{}
	for i := range c.Pods {
		if p := &c.Pods[i]; p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			on[p.Spec.NodeName] = append(on[p.Spec.NodeName], p)
		}
	}
	names := sgpu.GPUs{corev1.ResourceName(wellknown.DefaultDomains().VendorKey("gpu"))}
	for i := range c.Nodes {
		n := planner.NewNode(&c.Nodes[i], on[c.Nodes[i].Name]...)
		n.SetClaims(q.devices.Of(n.Name), q.devices.Extended())
		q.nodes[n.Name], q.status[n.Name], q.request.Nodes = n, "", append(q.request.Nodes, n)
		for name := range n.Status.Allocatable {
			if isGPU(name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	for g := range v1alpha1.All(c.Groups) {
		if g.Kind == v1alpha1.KindNode {
			q.status[g.Name] = g.Status
		}
	}
	slices.Sort(names[1:])
	slices.SortFunc(q.request.Nodes, func(a, b *planner.Node) int { return cmp.Compare(a.Name, b.Name) })
	q.planner = planner.New(topologyclient.Of(c.Groups), gang.Place, names)
	q.request.Reservations = c.reserved
	bound := func(p *corev1.Pod) bool { return p.Spec.NodeName != "" }
	if c.Spares != (intstr.IntOrString{}) && !slices.ContainsFunc(pods, bound) { // Else the spares are for it.
		q.request.Reservations = q.planner.Spares(q.request.Nodes, nil, c.Spares).With(c.reserved)
	}
	q.read(a, spec, pods, q.demands(c, pods))
	return q
}

// read sets what is asked for.
func (q *question) read(a *Answer, spec *gang.Spec, pods []*corev1.Pod, demands []*claims.Demand) {
	g := planner.Gang{Key: types.NamespacedName{Namespace: a.Namespace, Name: a.Name}, Spec: *spec}
	most := -1
	for i, pod := range pods {
		class := planner.ClassOf(pod, nil).With(demands[i])
		m := planner.Member{Pod: pod, Class: class, GPUs: int(gpus(pod)), Node: pod.Spec.NodeName}
		if demands[i] != nil {
			m.GPUs = max(m.GPUs, int(demands[i].GPUs))
		}
		if m.Node == "" {
			if at := slices.IndexFunc(q.classes, func(c *planner.Class) bool { return c.Key == m.Class.Key }); at >= 0 {
				m.Class = q.classes[at]
			} else {
				q.classes = append(q.classes, m.Class)
			}
			q.pods[m.Class]++
			if m.GPUs > most {
				q.most, most = m.Class, m.GPUs
			}
			q.waiting.Members = append(q.waiting.Members, m)
		}
		g.Members = append(g.Members, m)
	}
	q.waiting.Spec, q.waiting.MinMember = *spec, len(q.waiting.Members)
	if spec.MinMember > 0 {
		q.waiting.MinMember = min(max(spec.MinMember-a.Bound, 1), len(q.waiting.Members))
	}
	g.MinMember = a.Bound + q.waiting.MinMember
	q.request.Gangs = []planner.Gang{g}
}

// rooms returns the groups, those with most room first; of these the smaller.
func (q *question) rooms(groups []v1alpha1.Group) []Room {
	nodes, rooms := map[string][]string{}, []Room{}
	for g := range v1alpha1.All(groups) {
		if g.Kind == v1alpha1.KindNode {
			continue
		}
		room := Room{Name: g.Name, Kind: g.Kind, Of: q.pods[q.most]}
		for n := range v1alpha1.All(g.Child) {
			if n.Kind == v1alpha1.KindNode {
				nodes[g.Name] = append(nodes[g.Name], n.Name)
				room.Fit = min(room.Fit+q.room[n.Name], room.Of)
			}
		}
		if room.Fit < room.Of {
			room.Holders = q.holders(nodes[g.Name])
		}
		rooms = append(rooms, room)
	}
	slices.SortFunc(rooms, func(x, y Room) int {
		smaller := cmp.Compare(len(nodes[x.Name]), len(nodes[y.Name]))
		return cmp.Or(cmp.Compare(y.Fit, x.Fit), smaller, cmp.Compare(x.Name, y.Name))
	})
	return rooms
}

// reasons counts how many pods of the class with most GPUs each node takes now, and returns why the others
// take none, the most frequent reasons first.
func (q *question) reasons() []Reason {
	by := map[string]Reason{}
	for _, name := range slices.Sorted(maps.Keys(q.status)) {
		if why := q.obstacle(name); why != "" {
			by[why] = Reason{Reason: why, Nodes: append(by[why].Nodes, name)}
		}
	}
	return slices.SortedFunc(maps.Values(by), func(x, y Reason) int {
		return cmp.Or(cmp.Compare(len(y.Nodes), len(x.Nodes)), cmp.Compare(x.Reason, y.Reason))
	})
}

// obstacle returns why a node takes no pod; it counts those that it takes.
func (q *question) obstacle(name string) string {
	n, c := q.nodes[name], q.most
	switch {
	case n == nil:
		return "in the topology tree, and not in the cluster"
	case q.status[name] == v1alpha1.StatusNotReady:
		return "NotReady in the topology tree"
	}
	if why := cmp.Or(q.fault, c.Obstacle(n.Node)); why != "" {
		return why
	}
	free := q.request.Free(n)
	if q.room[name] = int(free.Count(c)); q.room[name] > 0 {
		return ""
	}
	if free.Waiting != nil {
		return "kept for " + free.Waiting.String()
	}
	lacks := free.Lacks(c.Amounts)
	if lacks == "" && c.Claims != nil {
		return n.Claims.Why(n.Node, c.Claims)
	}
	return fmt.Sprintf("%s: %s of %s free, asked for %s", lacks, quantity(lacks, free.Left(lacks)),
		quantity(lacks, n.Allocatable[lacks]), quantity(lacks, c.Amounts[lacks]))
}

// holders returns the largest holders of the scarcest resource that the pods request: devices of claims, the first
// extended resource, else cpu.
func (q *question) holders(nodes []string) []Holder {
	scarce := corev1.ResourceCPU
	if devices := slices.Sorted(maps.Keys(q.most.Amounts.Devices())); len(devices) > 0 {
		scarce = devices[0]
	}
	by := map[string]Holder{}
	for _, at := range nodes {
		if n := q.nodes[at]; n != nil {
			for _, pod := range n.Pods {
				amount := planner.Requests(pod)[scarce]
				if q.most.Claims != nil {
					scarce, amount = "devices", q.claims.devices(pod)
				}
				if amount > 0 {
					h := by[holderOf(pod)]
					h.Name, h.Resource, h.Amount = holderOf(pod), string(scarce), h.Amount+amount
					h.add(pod, q.now)
					by[h.Name] = h
				}
			}
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

// add adds a pod's owner and its times. It ends by activeDeadlineSeconds, which the kubelet enforces, or by
// its expected duration, whichever is first.
func (h *Holder) add(pod *corev1.Pod, now time.Time) {
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
	lasts, _ := time.ParseDuration(pod.Annotations[wellknown.ExpectedDuration])
	if seconds := pod.Spec.ActiveDeadlineSeconds; seconds != nil {
		if deadline := time.Duration(*seconds) * time.Second; lasts <= 0 || deadline < lasts {
			lasts = deadline
		}
	}
	if end := wellknown.Moment(began.Add(lasts)); lasts > 0 && end.After(h.Until) {
		h.Until = end
	}
}

// fits describes what fits now.
func (q *question) fits(a *Answer) (out []string) {
	least := q.waiting.MinMember
	say := func(format string, g planner.Gang, pods int) bool {
		group, ok := q.place(g, pods)
		if ok {
			out = append(out, fmt.Sprintf(format, these(pods)+", "+group))
		}
		return ok
	}
	if a.Rules != "" {
		say("%s, but for the rules between pods: "+strings.ReplaceAll(a.Rules, "%", "%%"), q.waiting, least)
		return out
	}
	if say("%s", q.waiting, least) {
		if a.Pods >= a.MinMember {
			out = append(out, "No scheduler has tried since, or a rule that is not counted here keeps them off: "+
				"see what it reported")
		}
		return out
	}
	// Fewer pods never fit worse.
	if most := sort.Search(least, func(n int) bool {
		_, ok := q.place(q.waiting, n+1)
		return !ok
	}); most > 0 {
		say("%s", q.waiting, most)
	}
	if level := q.waiting.Spec.Required; level != "" {
		wider := q.waiting
		wider.Spec.Required = ""
		say("without the required level "+level+": %s", wider, least)
	}
	anywhere := q.waiting
	anywhere.Members = slices.Clone(q.waiting.Members)
	for i := range anywhere.Members {
		free := *anywhere.Members[i].Pod
		free.Spec.NodeSelector, free.Spec.Affinity = nil, nil
		anywhere.Members[i].Class = planner.ClassOf(&free, nil).With(anywhere.Members[i].Class.Claims)
	}
	say("without node selector and affinity: %s", anywhere, least)
	return out
}

func these(pods int) string {
	if pods == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", pods)
}

// place returns where the first pods of a gang would go without the rules between pods.
func (q *question) place(g planner.Gang, pods int) (where string, ok bool) {
	g.Members, g.MinMember = g.Members[:pods], pods
	group, err := q.planner.Room(&g, &q.request.Query)
	return Where(group.Kind, group.Name), err == nil
}

// Where says where pods go: to a node, or into a group; in several groups without a name.
func Where(kind, name string) string {
	switch {
	case name == "":
		return "in several groups"
	case kind == v1alpha1.KindNode:
		return "on node " + name
	}
	return "in " + kind + " " + name
}

// preempt finds what the scheduler would evict to make room.
func (q *question) preempt(ctx context.Context, c *Cluster) (victims []Victim) {
	known := planner.Cluster{GangOf: map[types.UID]types.NamespacedName{}}
	for i := range c.Budgets {
		known.Budgets = append(known.Budgets, &c.Budgets[i])
	}
	for i := range c.Pods {
		if spec, err := gang.Read(&c.Pods[i], wellknown.DefaultDomains()); err == nil {
			// Gangs that run together or not at all have one name.
			known.GangOf[c.Pods[i].UID] = append(spec.Groups, spec.Key)[0]
		}
	}
	for _, pod := range q.planner.Preempt(ctx, &q.request, &known).Leaving {
		name, priority := holderOf(pod), schedulehelpers.PodPriority(pod)
		at := slices.IndexFunc(victims, func(v Victim) bool { return v.Name == name })
		if at < 0 {
			at, victims = len(victims), append(victims, Victim{Name: name, Priority: priority})
		}
		victims[at].Pods++
		victims[at].Priority = max(victims[at].Priority, priority)
	}
	return victims
}
