package fit

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"
)

// Promise is what a pod was promised on a node where it is not yet.
type Promise struct {
	UID types.UID
	// Priority is the pod's: pods of a higher one need not mind.
	Priority int32
	Amounts  []Amount
}

// Promises are what pods were promised, by node. They are not changed once
// made.
type Promises map[string][]Promise

// Room is what of a node's resources is free for somebody.
type Room struct {
	info framework.NodeInfo
	// promised are promises that count: to others, who are not there yet.
	promised []Amount
	pods     int64
	// spared are what goes away if pods below a priority are preempted.
	spared []Amount
}

// RoomOf is what is left of a node. Promises to pods that are on the node, of
// lower priority than the given, or that mine tells are the asker's own, do not
// count.
func RoomOf(info framework.NodeInfo, to []Promise, priority int32, mine func(types.UID) bool) Room {
	r := Room{info: info}
	if len(to) == 0 {
		return r
	}
	here := make(map[types.UID]bool, len(info.GetPods()))
	for _, pod := range info.GetPods() {
		here[pod.GetPod().UID] = true
	}
	for i := range to {
		p := &to[i]
		if here[p.UID] || p.Priority < priority || mine != nil && mine(p.UID) {
			continue
		}
		r.pods++
		r.promised = add(r.promised, p.Amounts)
	}
	return r
}

// Spare makes the room as large as it were without the pods of lower priority.
func (r *Room) Spare(priority int32) {
	for _, info := range r.info.GetPods() {
		pod := info.GetPod()
		if priorityOf(pod) >= priority {
			continue
		}
		r.pods--
		r.spared = add(r.spared, Requests(pod))
	}
}

func priorityOf(pod *corev1.Pod) int32 {
	if pod.Spec.Priority != nil {
		return *pod.Spec.Priority
	}
	return 0
}

// Count is how many pods of a class there is room for; it does not ask whether
// the node is eligible.
func (r *Room) Count(c *Class) int32 {
	n := int64(r.info.GetAllocatable().GetAllowedPodNumber()) - int64(len(r.info.GetPods())) - r.pods
	for _, a := range c.Amounts {
		n = min(n, r.free(a.Resource)/a.Value)
	}
	if c.left != nil {
		n = min(n, r.leftFor(c)/c.Amount(c.choice))
	}
	if c.alone {
		n = min(n, 1)
	}
	return int32(max(0, min(n, math.MaxInt32)))
}

// leftFor is how many units of what a class is choosy about are left for it.
func (r *Room) leftFor(c *Class) int64 { return c.left(r.info) - AmountOf(r.promised, c.choice) }

// Lacks is the first resource of which there is not enough for such a pod;
// empty if there is.
func (r *Room) Lacks(amounts []Amount) corev1.ResourceName {
	if r.info.GetAllocatable().GetAllowedPodNumber()-len(r.info.GetPods())-int(r.pods) < 1 {
		return corev1.ResourcePods
	}
	for _, a := range amounts {
		if r.free(a.Resource) < a.Value {
			return a.Resource
		}
	}
	return ""
}

// Promised tells whether promises count at all here.
func (r *Room) Promised() bool { return len(r.promised) > 0 || r.pods > 0 }

func (r *Room) free(name corev1.ResourceName) int64 {
	has, used := r.info.GetAllocatable(), r.info.GetRequested()
	return amountOf(has, name) - amountOf(used, name) - AmountOf(r.promised, name) + AmountOf(r.spared, name)
}

func amountOf(r framework.Resource, name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.GetMilliCPU()
	case corev1.ResourceMemory:
		return r.GetMemory()
	case corev1.ResourceEphemeralStorage:
		return r.GetEphemeralStorage()
	default:
		return r.GetScalarResources()[name]
	}
}

// Promise is how much of a resource is promised to others.
func (r *Room) Promise(name corev1.ResourceName) int64 { return AmountOf(r.promised, name) }

// AmountOf is how much of a resource there is in a list.
func AmountOf(amounts []Amount, name corev1.ResourceName) int64 {
	for _, a := range amounts {
		if a.Resource == name {
			return a.Value
		}
	}
	return 0
}

func add(to, amounts []Amount) []Amount {
next:
	for _, a := range amounts {
		for i := range to {
			if to[i].Resource == a.Resource {
				to[i].Value += a.Value
				continue next
			}
		}
		to = append(to, a)
	}
	return to
}

// Takes tells whether there is room for so many pods of each class at once.
func (r *Room) Takes(classes []*Class, pods []int32) bool {
	var total []Amount
	left := int64(r.info.GetAllocatable().GetAllowedPodNumber()) - int64(len(r.info.GetPods())) - r.pods
	for i, n := range pods {
		if left -= int64(n); classes[i].alone && n > 1 {
			return false
		}
		if c := classes[i]; c.left != nil && int64(n)*c.Amount(c.choice) > r.leftFor(c) {
			return false
		}
		for _, a := range classes[i].Amounts {
			total = add(total, []Amount{{a.Resource, a.Value * int64(n)}})
		}
	}
	if left < 0 {
		return false
	}
	for _, a := range total {
		if r.free(a.Resource) < a.Value {
			return false
		}
	}
	return true
}
