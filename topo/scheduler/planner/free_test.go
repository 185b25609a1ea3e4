package planner_test

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

const gpu = "nvidia.com/gpu"

func list(cpu, gpus, pods string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for name, text := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, gpu: gpus, corev1.ResourcePods: pods} {
		if text != "" {
			l[name] = resource.MustParse(text)
		}
	}
	return l
}

func pod(uid, cpu, gpus string, priority int32) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid, Labels: map[string]string{"app": "x"}},
		Spec: corev1.PodSpec{Priority: &priority, Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Requests: list(cpu, gpus, "")},
		}}},
	}
}

func node(pods ...*corev1.Pod) *planner.Node { return nodeWith(list("16", "8", "10"), pods...) }

func nodeWith(allocatable corev1.ResourceList, pods ...*corev1.Pod) *planner.Node {
	return planner.NewNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Allocatable: allocatable},
	}, pods...)
}

// repelsIn keeps a pod of namespace team off hosts by a term.
func repelsIn(term *corev1.PodAffinityTerm) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Namespace = "team"
		term.TopologyKey, term.LabelSelector = corev1.LabelHostname, &metav1.LabelSelector{MatchLabels: p.Labels}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{*term},
		}}
	}
}

// gone counts a pod of a node as gone.
func gone(node string, p *corev1.Pod) map[string]planner.Gone {
	var g planner.Gone
	g.Add(p.UID, planner.Requests(p))
	return map[string]planner.Gone{node: g}
}

func TestCount(t *testing.T) {
	two := func(change func(*corev1.Pod)) *corev1.Pod {
		p := pod("new", "1", "2", 5)
		if change != nil {
			change(p)
		}
		return p
	}
	with := func(n *planner.Node, change func(*corev1.Node)) *planner.Node { change(n.Node); return n }
	taint := corev1.Taint{Key: "nvidia.com/gpu.product", Value: "H20", Effect: corev1.TaintEffectNoSchedule}
	reserved := func(uid string, priority int32, gpus int64) planner.Reservations {
		return planner.Reservations{"n": {{UID: types.UID(uid), Priority: priority, Amounts: planner.Amounts{gpu: gpus}}}}
	}
	for _, tt := range []struct {
		name     string
		node     *planner.Node
		pod      *corev1.Pod
		reserved planner.Reservations
		gone     *corev1.Pod
		want     int32
	}{
		{"by GPUs", node(), two(nil), nil, nil, 4},
		{"by what is left", node(pod("a", "1", "3", 0)), two(nil), nil, nil, 2},
		{"by CPUs", node(pod("a", "14", "", 0)), two(nil), nil, nil, 2},
		{"by pods", node(), pod("new", "100m", "", 0), nil, nil, 10},
		{"one to a host", node(), two(func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 22}} }), nil, nil, 1},
		{"repels itself", node(), two(func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
			}}}}
		}), nil, nil, 1},
		{"repels itself in namespaces", node(), two(repelsIn(&corev1.PodAffinityTerm{Namespaces: []string{"other", "team"}})), nil, nil, 1},
		{"repels itself in all namespaces", node(), two(repelsIn(&corev1.PodAffinityTerm{
			NamespaceSelector: &metav1.LabelSelector{},
		})), nil, nil, 1},
		{"repels others", node(), two(repelsIn(&corev1.PodAffinityTerm{Namespaces: []string{"other"}})), nil, nil, 4},
		{"tainted", with(node(), func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{taint} }), two(nil), nil, nil, 0},
		{"tolerated", with(node(), func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{taint} }), two(func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: taint.Key, Operator: corev1.TolerationOpExists}}
		}), nil, nil, 4},
		{"cordoned", with(node(), func(n *corev1.Node) { n.Spec.Unschedulable = true }), two(nil), nil, nil, 0},
		{"not ready", with(node(), func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		}), two(nil), nil, nil, 0},
		{"selected otherwise", node(), two(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"pool": "a"} }), nil, nil, 0},
		{"reserved for another gang", node(), two(nil), reserved("other", 5, 3), nil, 2},
		{"reserved for a pod that is there", node(pod("other", "1", "3", 0)), two(nil), reserved("other", 5, 3), nil, 2},
		{"reserved for a lower priority", node(), two(nil), reserved("other", 4, 3), nil, 4},
		{"a pod counts as gone", node(pod("a", "1", "3", 0), pod("b", "1", "2", 5)), two(nil), nil, pod("a", "1", "3", 0), 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := planner.Query{
				Nodes: []*planner.Node{tt.node}, Reservations: tt.reserved, Priority: *tt.pod.Spec.Priority,
			}
			if tt.gone != nil {
				q.Gone = gone("n", tt.gone)
			}
			var table planner.Table
			for _, again := range []string{"", " again"} {
				if diff := cmp.Diff([]int32{tt.want}, table.Count(&q, planner.ClassOf(tt.pod, nil), nil)); diff != "" {
					t.Errorf("count%s (-want +got):\n%s", again, diff)
				}
			}
		})
	}
}

func TestTableFollowsNodes(t *testing.T) {
	var table planner.Table
	a, b := node(), node()
	b.Name = "m"
	q, class := planner.Query{Nodes: []*planner.Node{a, b}}, planner.ClassOf(pod("new", "1", "4", 0), nil)
	check := func(what string, want ...int32) {
		t.Helper()
		if diff := cmp.Diff(want, table.Count(&q, class, nil)); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	check("two nodes", 2, 2)
	a.Allocatable[gpu] = 4
	check("the same node is looked at again", 2, 2)
	full := node(pod("b", "1", "4", 0))
	full.Name = "m"
	q.Nodes = []*planner.Node{a, full}
	check("another state of a node", 2, 1)
	q.Reservations = planner.Reservations{"m": {{UID: "other", Priority: 5, Amounts: planner.Amounts{gpu: 4}}}}
	check("a reservation", 2, 0)
	q.Nodes = []*planner.Node{full, a}
	check("in another order", 0, 1)
	q.Nodes = q.Nodes[1:]
	check("with a node less", 1)
}

func TestFree(t *testing.T) {
	a, b := node(pod("a", "1", "3", 0)), node()
	b.Name, b.Spec.Unschedulable = "m", true
	reserved := planner.Reservations{"m": {{UID: "other", Priority: 5, Amounts: planner.Amounts{gpu: 2}}}}
	var table planner.Table
	for _, tt := range []struct {
		name string
		q    planner.Query
		want []int32
	}{
		{"as it is", planner.Query{}, []int32{5, 8}},
		{"less what is reserved", planner.Query{Reservations: reserved, Priority: 5}, []int32{5, 6}},
		{"a pod counts as gone", planner.Query{Reservations: reserved, Priority: 5, Gone: gone("n", pod("a", "1", "3", 0))}, []int32{8, 6}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.q.Nodes = []*planner.Node{a, b}
			if diff := cmp.Diff(tt.want, table.Free(&tt.q, gpu, nil)); diff != "" {
				t.Error(diff)
			}
		})
	}
	a = node()
	if diff := cmp.Diff([]int32{8, 8}, table.Free(&planner.Query{Nodes: []*planner.Node{a, b}}, gpu, nil)); diff != "" {
		t.Errorf("a pod has gone: %s", diff)
	}
}

func TestFitsTogether(t *testing.T) {
	master, worker := planner.ClassOf(pod("m", "8", "", 0), nil), planner.ClassOf(pod("w", "2", "2", 0), nil)
	free := (&planner.Query{}).Free(node())
	for _, tt := range []struct {
		masters, workers int32
		want             bool
	}{{1, 4, true}, {2, 0, true}, {2, 1, false}, {0, 5, false}} {
		if got := free.FitsTogether([]*planner.Class{master, worker}, []int32{tt.masters, tt.workers}); got != tt.want {
			t.Errorf("%d masters and %d workers: %t", tt.masters, tt.workers, got)
		}
	}
	// What a node has too little of since a GPU is lost matters to pods alone that ask for it.
	free = (&planner.Query{}).Free(nodeWith(list("16", "7", "110"), pod("old", "1", "8", 0)))
	if !free.FitsTogether([]*planner.Class{master, worker}, []int32{1, 0}) {
		t.Error("a master does not fit for want of the GPUs of workers that are not there")
	}
	free = (&planner.Query{}).Free(node())
	if lacks := free.Lacks(planner.Amounts{gpu: 9}); lacks != gpu {
		t.Errorf("lacks %q", lacks)
	}
}

// publishing is a node that publishes so many free GPUs, of which GPU-0 to GPU-3
// are accepted.
func publishing(n int) *planner.Node {
	i := node()
	free := allocation.FreeGPUs{Version: 1}
	for at := range n {
		free.Free = append(free.Free, allocation.FreeGPU{UUID: fmt.Sprint("GPU-", at)})
	}
	i.Annotations = map[string]string{wellknown.FreeGPUs: free.String()}
	return i
}

func TestClassesWithASelector(t *testing.T) {
	c := config.Default()
	gpus := sgpu.New(&c, slog.New(slog.DiscardHandler), nil)
	class := func(avoid string) *planner.Class {
		s, err := gpus.Selector(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"nvidia.com/nouse-gpuuuid": avoid}}})
		if err != nil {
			t.Fatal(err)
		}
		return planner.ClassOf(pod("new", "1", "2", 5), s)
	}
	others := planner.Reservations{"n": {{UID: "other", Priority: 5, Amounts: planner.Amounts{gpu: 2}}}}
	for _, tt := range []struct {
		name     string
		left     int
		reserved planner.Reservations
		want     int32
	}{
		{"more than are free", 9, nil, 4},
		{"fewer", 5, nil, 2},
		{"none", 0, nil, 0},
		{"less what is reserved", 5, others, 1},
	} {
		var table planner.Table
		q := planner.Query{Nodes: []*planner.Node{publishing(tt.left)}, Reservations: tt.reserved, Priority: 5}
		if diff := cmp.Diff([]int32{tt.want}, table.Count(&q, class("GPU-x"), nil)); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
	three, four := (&planner.Query{}).Free(publishing(3)), (&planner.Query{}).Free(publishing(4))
	if three.FitsTogether([]*planner.Class{class("GPU-x")}, []int32{2}) || !four.FitsTogether([]*planner.Class{class("GPU-x")}, []int32{2}) {
		t.Error("two pods of two GPUs need four of them")
	}
	if class("GPU-x").Key == class("GPU-y").Key || class("GPU-x").Key == planner.ClassOf(pod("new", "1", "2", 5), nil).Key {
		t.Error("pods with different selectors are one class")
	}
}

func TestClassesOfEqualPods(t *testing.T) {
	a, b := pod("a", "1", "2", 0), pod("b", "1", "2", 9)
	if planner.ClassOf(a, nil).Key != planner.ClassOf(b, nil).Key {
		t.Error("pods that differ in name and priority are of two classes")
	}
	b.Spec.NodeSelector = map[string]string{"pool": "x"}
	if planner.ClassOf(a, nil).Key == planner.ClassOf(b, nil).Key {
		t.Error("another selector is the same class")
	}
	if got := planner.ClassOf(a, nil, gpu).Amounts[gpu]; got != 0 {
		t.Errorf("an ignored resource counts %d", got)
	}
}
