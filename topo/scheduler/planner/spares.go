package planner

import (
	"math"

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
	whole := map[string]Amounts{}
	query := Query{Nodes: nodes, Reservations: beside, Priority: math.MinInt32}
	for _, gpu := range p.gpus {
		for i, free := range p.table.Free(&query, gpu, nil) {
			n, around := nodes[i], t.placement.Around(t.ids[i])
			if n.Allocatable[gpu] == 0 || len(around) < 2 {
				continue
			}
			size[around[1]]++
			if int64(free) == n.Allocatable[gpu] && !n.Spec.Unschedulable && t.usable(t.ids[i]) {
				idle[around[1]], whole[n.Name] = append(idle[around[1]], n.Name), Amounts{gpu: int64(free)}
			}
		}
	}
	out := Reservations{}
	for group, names := range idle {
		for _, name := range placement.Spares(want, size[group], names) {
			out[name] = []Reservation{{
				UID: types.UID("spare/" + name), Priority: math.MaxInt32, Waiting: &Waiting{}, Amounts: whole[name],
			}}
		}
	}
	return out
}
