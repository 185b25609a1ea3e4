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
)

// Cluster has what preemption must know of pods beside their nodes.
type Cluster struct {
	// GangOf has the gang of each pod that is in a gang. Gangs that run together or not at
	// all count as one.
	GangOf map[types.UID]types.NamespacedName
	// Budgets limit how many pods may be evicted.
	Budgets []*policyv1.PodDisruptionBudget
}

// Victims are the gangs and pods that may be evicted for pods of a priority, ordered by
// worth. A set of victims is a list of ascending indexes.
type Victims struct {
	victims []victim
	budgets []budget
	// terminating are pods of a lower priority that leave in any case; leaving has them by node.
	terminating []*corev1.Pod
	leaving     map[string]Gone
}

// victim is evicted as a whole: the pods of a gang, or a pod of no gang.
type victim struct {
	name string
	pods []*corev1.Pod
	gone map[string]Gone
	// priority is the highest of its pods, since when the first of them started.
	priority int32
	since    time.Time
	// budgets has a disruption budget as often as the victim has pods in it.
	budgets []int
}

// ReadVictims finds the victims on nodes. A gang with a pod of the priority or above is not
// a victim, nor is a gang to spare.
func ReadVictims(nodes []*Node, c *Cluster, priority int32, spare ...Gang) *Victims {
	v := &Victims{leaving: map[string]Gone{}, budgets: readBudgets(c.Budgets)}
	spared, of := map[types.NamespacedName]bool{}, map[types.NamespacedName]*victim{}
	for i := range spare {
		spared[spare[i].Key] = true
	}
	for _, node := range nodes {
		for _, pod := range node.Pods {
			key, in := gangOf(pod, c.GangOf)
			switch {
			case schedulehelpers.PodPriority(pod) >= priority:
				spared[key] = spared[key] || in
			case pod.DeletionTimestamp != nil:
				v.terminating = append(v.terminating, pod)
				add(v.leaving, node.Name, pod)
			default:
				if of[key] == nil {
					of[key] = &victim{name: key.String(), priority: math.MinInt32, gone: map[string]Gone{}}
				}
				of[key].add(node.Name, pod, v.budgets)
			}
		}
	}
	for key, one := range of {
		if !spared[key] {
			v.victims = append(v.victims, *one)
		}
	}
	slices.SortFunc(v.victims, func(a, b victim) int {
		// The longer a victim runs, the more it is worth.
		return cmp.Or(cmp.Compare(a.priority, b.priority), b.since.Compare(a.since), cmp.Compare(a.name, b.name))
	})
	return v
}

// AnyBelow reports whether any of the nodes runs a pod of a lower priority.
func AnyBelow(nodes []*Node, priority int32) bool {
	return slices.ContainsFunc(nodes, func(n *Node) bool {
		return slices.ContainsFunc(n.Pods, func(pod *corev1.Pod) bool {
			return schedulehelpers.PodPriority(pod) < priority
		})
	})
}

// gangOf returns the gang that a pod is evicted with: a gang of labels, or a native PodGroup.
// A pod of no gang has its own name.
func gangOf(pod *corev1.Pod, gangs map[types.UID]types.NamespacedName) (key types.NamespacedName, in bool) {
	if key, in = gangs[pod.UID]; in {
		return key, true
	}
	if g := pod.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return types.NamespacedName{Namespace: pod.Namespace + "/podgroup", Name: *g.PodGroupName}, true
	}
	return types.NamespacedName{Namespace: pod.Namespace + "/pod", Name: pod.Name}, false
}

func add(to map[string]Gone, node string, pod *corev1.Pod) {
	gone := to[node]
	gone.Add(pod.UID, Requests(pod))
	to[node] = gone
}

func (v *victim) add(node string, pod *corev1.Pod, budgets []budget) {
	v.pods = append(v.pods, pod)
	add(v.gone, node, pod)
	v.priority = max(v.priority, schedulehelpers.PodPriority(pod))
	if since := started(pod); v.since.IsZero() || since.Before(v.since) {
		v.since = since
	}
	for i := range budgets {
		if budgets[i].counts(pod) {
			v.budgets = append(v.budgets, i)
		}
	}
}

// started returns when the kubelet took a pod, or when it was created.
func started(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

// pods returns the pods of a set.
func (v *Victims) pods(set []int) (pods []*corev1.Pod) {
	for _, i := range set {
		pods = append(pods, v.victims[i].pods...)
	}
	return pods
}

// compare orders sets, the better one first: the one that breaks fewer disruption budgets, then
// the smaller one, then the one with the least valuable of the most valuable victims.
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

// violations counts the evictions of a set that the budgets do not allow.
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

// budget is a PodDisruptionBudget, read as in kube-scheduler's preemption.
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

// counts reports whether the eviction of a pod counts. The status has the evictions that
// the API server has processed already.
func (b *budget) counts(pod *corev1.Pod) bool {
	if b.Namespace != pod.Namespace || len(pod.Labels) == 0 {
		return false
	}
	_, processed := b.Status.DisruptedPods[pod.Name]
	return !processed && b.selector.Matches(labels.Set(pod.Labels))
}
