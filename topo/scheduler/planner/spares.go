package planner

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heddle-dev/heddle/topo/placement"
)

// Spares returns what is reserved for the repair of running gangs: the GPUs of as many idle nodes of each lowest group
// as wanted, beside other reservations. Nodes in no group are not kept.
func (p *Planner) Spares(nodes []*Node, beside Reservations, want intstr.IntOrString) Reservations {
	p.update(nodes)
	t := p.forest.fabric
	size, idle := map[placement.Group]int{}, map[placement.Group][]string{}
	gpus := map[string]corev1.ResourceName{}
	query := Query{Nodes: nodes, Reservations: beside, Priority: math.MinInt32}
	for _, gpu := range p.gpus {
		for i, free := range p.table.Free(&query, gpu, nil) {
			n, around := nodes[i], t.placement.Around(t.ids[i])
			if n.Allocatable[gpu] == 0 || len(around) < 2 {
				continue
			}
			size[around[1]]++
			if int64(free) == n.Allocatable[gpu] && !n.Spec.Unschedulable && t.usable(t.ids[i]) {
				idle[around[1]], gpus[n.Name] = append(idle[around[1]], n.Name), gpu
			}
		}
	}
	out, at := Reservations{}, p.table.at
	for group, names := range idle {
		for _, name := range placement.Spares(want, size[group], names) {
			gpu := gpus[name]
			out[name] = []Reservation{{
				UID: types.UID("spare/" + name), Priority: math.MaxInt32, Waiting: &Waiting{},
				Amounts: Amounts{gpu: nodes[at[name]].Allocatable[gpu]},
			}}
		}
	}
	return out
}
