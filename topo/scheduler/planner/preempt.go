package planner

import (
	"cmp"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/scheduler/fit"
)

// Cluster is what preemption must know of pods beside the nodes that they are on.
type Cluster struct {
	// GangOf has the gang of each pod that is in one: gangs that run together or not at
	// all are one.
	GangOf map[types.UID]types.NamespacedName
	// Budgets limit how many pods may be evicted.
	Budgets []*policyv1.PodDisruptionBudget
}

// victim is what is evicted together or not at all: the pods of a gang, or a pod of none.
type victim struct {
	name string
	pods []*corev1.Pod
	gone map[string]fit.Gone
	// priority is the highest of its pods, since when the first of them started.
	priority int32
	since    time.Time
	gpus     int64
	// budgets has a disruption budget as often as a pod of the victim is in it.
	budgets []int
}

// worth orders victims: by priority, then the longer one runs the more it is worth.
func (v *victim) worth(other *victim) int {
	return cmp.Or(cmp.Compare(v.priority, other.priority), other.since.Compare(v.since), cmp.Compare(v.name, other.name))
}

// Preempt plans the gangs of a request with pods of a lower priority gone: none that do
// not terminate already if that is enough, else those of the fewest gangs. leaving are the
// pods that must be gone first; there are no plans without.
func (p *Planner) Preempt(r *Request, c *Cluster) (plans []Plan, leaving []*corev1.Pod) {
	if !r.MayPreempt() {
		return nil, nil
	}
	e := eviction{planner: p, request: *r}
	priority, _ := r.preemptor()
	terminating := e.read(c, priority)
	set, plans := e.search()
	if plans == nil {
		return nil, nil
	}
	taken := nodesTaken(plans)
	for _, pod := range terminating {
		if taken[pod.Spec.NodeName] {
			leaving = append(leaving, pod)
		}
	}
	for _, i := range set {
		leaving = append(leaving, e.victims[i].pods...)
	}
	return plans, leaving
}

func nodesTaken(plans []Plan) map[string]bool {
	taken := map[string]bool{}
	for i := range plans {
		for _, node := range plans[i].Nodes {
			taken[node] = true
		}
	}
	return taken
}

// MayPreempt reports whether there is a pod of a lower priority, and all members that need
// a node may preempt: for most gangs there is nothing to search.
func (r *Request) MayPreempt() bool {
	priority, may := r.preemptor()
	return may && slices.ContainsFunc(r.Nodes, func(info framework.NodeInfo) bool {
		return slices.ContainsFunc(info.GetPods(), func(on framework.PodInfo) bool {
			return schedulehelpers.PodPriority(on.GetPod()) < priority
		})
	})
}

// preemptor is the lowest priority of the members that need a node, and whether all of
// them may preempt.
func (r *Request) preemptor() (priority int32, may bool) {
	priority = math.MaxInt32
	for i := range r.Gangs {
		priority = min(priority, r.Gangs[i].priority())
		if slices.ContainsFunc(r.Gangs[i].Members, func(m Member) bool {
			policy := m.Pod.Spec.PreemptionPolicy
			return m.Node == "" && policy != nil && *policy == corev1.PreemptNever
		}) {
			return 0, false
		}
	}
	return priority, true
}

// read finds the victims that there may be, in the order of their worth. A gang of which
// a pod has the preemptor's priority is none. terminating are pods of a lower priority
// that leave anyway.
func (e *eviction) read(c *Cluster, priority int32) (terminating []*corev1.Pod) {
	spared, of := map[types.NamespacedName]bool{}, map[types.NamespacedName]*victim{}
	for i := range e.request.Gangs {
		spared[e.request.Gangs[i].Key] = true
	}
	budgets := readBudgets(c.Budgets)
	e.leaving = map[string]fit.Gone{}
	for _, info := range e.request.Nodes {
		node := info.Node().Name
		for _, on := range info.GetPods() {
			pod := on.GetPod()
			key, in := gangOf(pod, c.GangOf)
			switch {
			case schedulehelpers.PodPriority(pod) >= priority:
				if in {
					spared[key] = true
				}
			case pod.DeletionTimestamp != nil:
				terminating = append(terminating, pod)
				gone := e.leaving[node]
				gone.Add(pod)
				e.leaving[node] = gone
			default:
				v := of[key]
				if v == nil {
					v = &victim{name: key.String(), priority: math.MinInt32, gone: map[string]fit.Gone{}}
					of[key] = v
				}
				v.add(node, pod, budgets)
			}
		}
	}
	for key, v := range of {
		if !spared[key] {
			v.gpus = e.planner.gpusOf(v.gone)
			e.victims = append(e.victims, *v)
		}
	}
	slices.SortFunc(e.victims, func(a, b victim) int { return a.worth(&b) })
	for i := range budgets {
		e.allowed = append(e.allowed, budgets[i].allowed)
	}
	return terminating
}

// gangOf is the gang that a pod is evicted with: of labels, or a native PodGroup. A pod
// that is in none has its own name.
func gangOf(pod *corev1.Pod, gangs map[types.UID]types.NamespacedName) (key types.NamespacedName, in bool) {
	if key, in = gangs[pod.UID]; in {
		return key, true
	}
	if g := pod.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return types.NamespacedName{Namespace: pod.Namespace + "/podgroup", Name: *g.PodGroupName}, true
	}
	return types.NamespacedName{Namespace: pod.Namespace + "/pod", Name: pod.Name}, false
}

func (v *victim) add(node string, pod *corev1.Pod, budgets []budget) {
	v.pods = append(v.pods, pod)
	gone := v.gone[node]
	gone.Add(pod)
	v.gone[node] = gone
	v.priority = max(v.priority, schedulehelpers.PodPriority(pod))
	started := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		started = pod.Status.StartTime.Time
	}
	if v.since.IsZero() || started.Before(v.since) {
		v.since = started
	}
	for i := range budgets {
		if budgets[i].counts(pod) {
			v.budgets = append(v.budgets, i)
		}
	}
}

// budget is a PodDisruptionBudget, as kube-scheduler's preemption reads it.
type budget struct {
	*policyv1.PodDisruptionBudget
	selector labels.Selector
	allowed  int
}

func readBudgets(all []*policyv1.PodDisruptionBudget) (out []budget) {
	for _, b := range all {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || selector.Empty() {
			continue // It matches nothing.
		}
		out = append(out, budget{b, selector, int(b.Status.DisruptionsAllowed)})
	}
	return out
}

// counts reports whether the eviction of a pod counts: one that the API server has
// processed is in the budget's status already.
func (b *budget) counts(pod *corev1.Pod) bool {
	if b.Namespace != pod.Namespace || len(pod.Labels) == 0 {
		return false
	}
	_, processed := b.Status.DisruptedPods[pod.Name]
	return !processed && b.selector.Matches(labels.Set(pod.Labels))
}

func (p *Planner) gpusOf(gone map[string]fit.Gone) (n int64) {
	for node := range gone {
		for _, gpu := range p.gpus {
			n += gone[node].Amounts[gpu]
		}
	}
	return n
}
