// Package packing measures what a pod costs the pods that come after it: the GPUs that they can no
// longer use if the pod goes to a node, because it takes these, or the CPU, memory or HCAs without
// which nobody can use them.
//
// It owns what pods with GPUs ask for beside these, which it learns from the pods that are placed, so that no
// cluster needs figures of its own. It is pure: it knows neither pods nor nodes, and decides nothing.
package packing

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Whole is one GPU. GPUs are counted in percent of one, so that shares count as what they are.
const Whole = 100

// Room holds what a node has left.
type Room struct {
	// GPUs is in percent of one GPU, and Parts what of it is on GPUs that shares use.
	GPUs, Parts int64
	// Left has the resources of [Demand.Names]; negative for one that the node does not have at all.
	Left []int64
}

// Demand is what the pods of a cluster ask for. The zero value has learned nothing. It forgets as the GPUs of
// the cluster are given out once more, since what is asked for changes. It is not safe for concurrent use.
type Demand struct {
	names []corev1.ResourceName
	// needs has the amounts of names that pods asked for, gpus the GPUs of the same pods. Later pods count
	// more: by weight, which grows with each of them.
	needs  []float64
	gpus   float64
	weight float64
	// classes are of pods that only some nodes take, by name; selecting has those that select a node, by its name.
	classes   map[string]*class
	selecting map[string][]*class
	// capacity is the GPUs of all nodes.
	capacity float64
}

// class has the GPUs that its pods asked for, and its nodes with their GPUs.
type class struct {
	gpus, on float64
	nodes    []string
}

// maxClasses bounds the classes. Those that asked for least are forgotten.
const maxClasses = 64

// Names are the resources that pods with GPUs ask for beside these.
func (d *Demand) Names() []corev1.ResourceName { return d.names }

// Add learns from a pod with GPUs. capacity is the GPUs of all nodes; of is the pod's class, see [Demand.Select],
// or empty if all nodes take the pod.
func (d *Demand) Add(gpus int64, amounts map[corev1.ResourceName]int64, capacity int64, of string) {
	if gpus <= 0 || capacity <= 0 {
		return
	}
	const most = 1e100
	if d.weight > most {
		d.scale(1 / d.weight)
	}
	d.capacity = float64(capacity)
	d.weight = max(d.weight, 1) * (1 + float64(gpus)/d.capacity)
	added := d.weight * float64(gpus)
	d.gpus += added
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		at := slices.Index(d.names, name)
		if at < 0 {
			at, d.names, d.needs = len(d.names), append(d.names, name), append(d.needs, 0)
		}
		d.needs[at] += d.weight * float64(amounts[name])
	}
	if c := d.classes[of]; c != nil {
		c.gpus += added
	}
}

func (d *Demand) scale(by float64) {
	d.weight, d.gpus = d.weight*by, d.gpus*by
	for i := range d.needs {
		d.needs[i] *= by
	}
	for _, c := range d.classes {
		c.gpus *= by
	}
}

// Select replaces the nodes that take pods of a class; on is how many GPUs these nodes have.
func (d *Demand) Select(of string, nodes []string, on int64) {
	if d.classes == nil {
		d.classes, d.selecting = map[string]*class{}, map[string][]*class{}
	}
	c := d.classes[of]
	if c == nil {
		c = &class{}
		if len(d.classes) == maxClasses {
			least := slices.MinFunc(slices.Sorted(maps.Keys(d.classes)), func(a, b string) int {
				return cmp.Compare(d.classes[a].gpus, d.classes[b].gpus)
			})
			d.deselect(d.classes[least])
			delete(d.classes, least)
		}
		d.classes[of] = c
	}
	d.deselect(c)
	c.nodes, c.on = nodes, float64(max(on, 1))
	for _, node := range nodes {
		d.selecting[node] = append(d.selecting[node], c)
	}
}

func (d *Demand) deselect(c *class) {
	for _, node := range c.nodes {
		others := slices.DeleteFunc(d.selecting[node], func(other *class) bool { return other == c })
		if d.selecting[node] = others; len(others) == 0 {
			delete(d.selecting, node)
		}
	}
}

// Cost returns how many GPUs, in percent of one, are lost for others on a node with the room before and after a
// pod: those that nobody can use any longer, and the rest of a GPU that was idle, which pods with whole GPUs
// cannot use. It is not less than what the pod takes, although nobody could have used that: pods that need
// much would else go to idle nodes. A GPU costs more on a node that many ask for who can use few others.
func (d *Demand) Cost(node string, before, after Room) float64 {
	price := 1.0
	for _, c := range d.selecting[node] {
		if c.gpus > 0 {
			price += c.gpus / c.on * d.capacity / d.gpus
		}
	}
	lost := d.usable(before) - d.usable(after) + float64(max(0, after.Parts-before.Parts))
	return max(lost, float64(before.GPUs-after.GPUs)) * price
}

// usable returns how many of the GPUs that are left have what pods ask for beside them.
func (d *Demand) usable(r Room) float64 {
	usable := float64(r.GPUs)
	for i, need := range d.needs {
		if left := r.Left[i]; left >= 0 && need > 0 {
			usable = min(usable, float64(left)*d.gpus/need)
		}
	}
	return max(usable, 0)
}
