package week

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	topology "github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

const gpu = corev1.ResourceName("nvidia.com/gpu")

// holder reserves nodes with the scheduler's own planner.
type holder struct {
	planner *planner.Planner
	nodes   []*corev1.Node
	ids     map[string]int
}

func newHolder(c *cluster) *holder {
	h := &holder{
		planner: planner.New(topologyclient.Of(c.groups), topology.Place, sgpu.GPUs{gpu}), ids: map[string]int{},
	}
	for i := range c.free {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.tree.Name(int32(i))}}
		n.Status.Allocatable = corev1.ResourceList{gpu: amount(perNode), corev1.ResourcePods: amount(110)}
		h.nodes, h.ids[n.Name] = append(h.nodes, n), i
	}
	return h
}

func amount(n int32) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }

// pod returns a pod of the gang, created when the gang began.
func (g *gang) pod(rank int, node string) *corev1.Pod {
	name := fmt.Sprintf("%d-%d", g.id, rank)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Unix(0, 0).Add(g.began)),
	}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{gpu: amount(g.gpus)},
	}}}
	return p
}

// hold returns how many GPUs of each node are reserved for a gang.
func (h *holder) hold(w *week, g *gang) []int32 {
	on, of := make([][]*corev1.Pod, len(h.nodes)), map[types.UID]types.NamespacedName{}
	byID := func(a, b *gang) int { return cmp.Compare(a.id, b.id) }
	for _, running := range slices.SortedFunc(maps.Keys(w.running), byID) {
		for rank, n := range running.nodes {
			p := running.pod(rank, h.nodes[n].Name)
			on[n], of[p.UID] = append(on[n], p), types.NamespacedName{Name: fmt.Sprint(running.id)}
		}
	}
	r := &planner.Request{}
	for i, n := range h.nodes {
		if w.cluster.down[i] {
			n = n.DeepCopy()
			n.Spec.Unschedulable = true
		}
		r.Nodes = append(r.Nodes, planner.NewNode(n, on[i]...))
	}
	waiting := planner.Gang{MinMember: g.pods}
	for rank := range g.pods {
		p := g.pod(rank, "")
		waiting.Members = append(waiting.Members, planner.Member{Pod: p, Class: planner.ClassOf(p, nil), GPUs: int(g.gpus)})
	}
	r.Gangs = []planner.Gang{waiting}
	out := make([]int32, len(h.nodes))
	for node, held := range h.planner.Hold(r, of, &planner.Waiting{}) {
		for _, one := range held {
			out[h.ids[node]] += int32(one.Amounts[gpu])
		}
	}
	return out
}
