package fit

import (
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedulehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"
)

// Reservation is what a gang's plan keeps on a node for a pod that is not there
// yet.
type Reservation struct {
	UID types.UID
	// Priority is the pod's: a reservation does not bind pods of a higher one.
	Priority int32
	Amounts  Amounts
}

// Reservations are by node. They are not changed once made.
type Reservations map[string][]Reservation

// Free is what a pod can use of a node's resources.
type Free struct {
	info framework.NodeInfo
	// reserved and pods are the reservations that count.
	reserved Amounts
	pods     int64
	// preempted is what pods of lower priority would free.
	preempted Amounts
}

// FreeOf is what is left of a node. Reservations for pods that are on the node
// already, for pods of a lower priority, and for the pod self do not count.
func FreeOf(info framework.NodeInfo, reservations []Reservation, priority int32, self types.UID) Free {
	f := Free{info: info}
	if len(reservations) == 0 {
		return f
	}
	f.reserved = Amounts{}
	here := make(map[types.UID]bool, len(info.GetPods()))
	for _, pod := range info.GetPods() {
		here[pod.GetPod().UID] = true
	}
	for i := range reservations {
		r := &reservations[i]
		if here[r.UID] || r.Priority < priority || r.UID == self {
			continue
		}
		f.pods++
		f.reserved.add(r.Amounts, 1)
	}
	return f
}

// Preempt adds what pods of a lower priority hold.
func (f *Free) Preempt(priority int32) {
	f.preempted = Amounts{}
	for _, info := range f.info.GetPods() {
		pod := info.GetPod()
		if schedulehelpers.PodPriority(pod) >= priority {
			continue
		}
		f.pods--
		f.preempted.add(Requests(pod), 1)
	}
}

// Count is how many pods of a class fit; it does not ask whether the node is
// eligible.
func (f *Free) Count(c *Class) int32 {
	n := f.podSlots()
	for name, value := range c.Amounts {
		n = min(n, f.amount(name)/value)
	}
	if c.selector != nil {
		n = min(n, f.selected(c)/c.Amounts[c.selector.Resource])
	}
	if c.exclusive {
		n = min(n, 1)
	}
	return int32(max(0, min(n, math.MaxInt32)))
}

func (f *Free) podSlots() int64 {
	return int64(f.info.GetAllocatable().GetAllowedPodNumber()) - int64(len(f.info.GetPods())) - f.pods
}

// selected is how many GPUs are left that the class's selector accepts. A node
// that does not publish its free GPUs has none.
func (f *Free) selected(c *Class) int64 {
	left, err := c.selector.Left(f.info)
	if err != nil {
		return 0
	}
	return left - f.Reserved(c.selector.Resource)
}

// Lacks is the first resource, by name, of which there is not enough for a pod;
// empty if there is.
func (f *Free) Lacks(amounts Amounts) corev1.ResourceName {
	if f.podSlots() < 1 {
		return corev1.ResourcePods
	}
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		if f.amount(name) < amounts[name] {
			return name
		}
	}
	return ""
}

// HasReservations reports whether any reservation counts.
func (f *Free) HasReservations() bool { return f.pods > 0 }

// Reserved is how much of a resource is reserved for other pods.
func (f *Free) Reserved(name corev1.ResourceName) int64 { return f.reserved[name] }

// FitsTogether reports whether so many pods of each class fit at once.
func (f *Free) FitsTogether(classes []*Class, pods []int32) bool {
	total := Amounts{}
	slots := f.podSlots()
	for i, n := range pods {
		c := classes[i]
		if slots -= int64(n); c.exclusive && n > 1 {
			return false
		}
		if c.selector != nil && int64(n)*c.Amounts[c.selector.Resource] > f.selected(c) {
			return false
		}
		total.add(c.Amounts, int64(n))
	}
	for name, value := range total {
		if f.amount(name) < value {
			return false
		}
	}
	return slots >= 0
}

func (f *Free) amount(name corev1.ResourceName) int64 {
	allocatable, requested := f.info.GetAllocatable(), f.info.GetRequested()
	unused := amountIn(allocatable, name) - amountIn(requested, name)
	return unused - f.reserved[name] + f.preempted[name]
}

func amountIn(r framework.Resource, name corev1.ResourceName) int64 {
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
