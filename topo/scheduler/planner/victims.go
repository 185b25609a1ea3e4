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

// Victims are what may be evicted for pods of a priority, in the order of their worth: sets
// of them are of ascending indices. Of two sets the one is better that breaks fewer
// disruption budgets, then the one of fewer victims, then the one of which the most
// valuable victim is worth less.
type Victims struct {
	victims []victim
	budgets []budget
	// terminating are pods of a lower priority that leave anyway, leaving the same by node.
	terminating []*corev1.Pod
	leaving     map[string]fit.Gone
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

// ReadVictims finds the victims that there may be on nodes. A gang of which a pod has the
// priority is none, nor is one that is spared.
func ReadVictims(nodes []framework.NodeInfo, c *Cluster, priority int32, spare ...types.NamespacedName) *Victims {
	v := &Victims{leaving: map[string]fit.Gone{}, budgets: readBudgets(c.Budgets)}
	spared, of := map[types.NamespacedName]bool{}, map[types.NamespacedName]*victim{}
	for _, key := range spare {
		spared[key] = true
	}
	for _, info := range nodes {
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
				v.terminating = append(v.terminating, pod)
				gone := v.leaving[node]
				gone.Add(pod.UID, fit.Requests(pod))
				v.leaving[node] = gone
			default:
				if of[key] == nil {
					of[key] = &victim{name: key.String(), priority: math.MinInt32, gone: map[string]fit.Gone{}}
				}
				of[key].add(node, pod, v.budgets)
			}
		}
	}
	for key, one := range of {
		if !spared[key] {
			v.victims = append(v.victims, *one)
		}
	}
	slices.SortFunc(v.victims, func(a, b victim) int { return a.worth(&b) })
	return v
}

// pods are those of a set.
func (v *Victims) pods(set []int) (pods []*corev1.Pod) {
	for _, i := range set {
		pods = append(pods, v.victims[i].pods...)
	}
	return pods
}

// compare orders sets: the better one first.
func (v *Victims) compare(a, b []int) int {
	if c := cmp.Or(cmp.Compare(v.violations(a), v.violations(b)), cmp.Compare(len(a), len(b))); c != 0 {
		return c
	}
	for i, worst := range slices.Backward(a) {
		if worst != b[i] {
			return cmp.Compare(worst, b[i])
		}
	}
	return 0
}

// violations is how many evictions of a set the budgets do not allow.
func (v *Victims) violations(set []int) (n int) {
	used := make([]int32, len(v.budgets))
	for _, i := range set {
		for _, b := range v.victims[i].budgets {
			if used[b]++; used[b] > v.budgets[b].Status.DisruptionsAllowed {
				n++
			}
		}
	}
	return n
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
	gone.Add(pod.UID, fit.Requests(pod))
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
}

func readBudgets(all []*policyv1.PodDisruptionBudget) (out []budget) {
	for _, b := range all {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || selector.Empty() {
			continue // It matches nothing.
		}
		out = append(out, budget{b, selector})
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
