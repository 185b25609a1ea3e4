package planner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/scheduler/fit"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
	"github.com/heddle-dev/heddle/topo/scheduler/topologyclient"
)

const gpu = "nvidia.com/gpu"

// busyNode is what of a NodeInfo is looked at: eight GPUs, and pods.
type busyNode struct {
	framework.NodeInfo
	node *corev1.Node
	pods []framework.PodInfo
}

func (n *busyNode) Node() *corev1.Node               { return n.node }
func (n *busyNode) GetPods() []framework.PodInfo     { return n.pods }
func (*busyNode) GetGeneration() int64               { return time.Now().UnixNano() }
func (*busyNode) GetAllocatable() framework.Resource { return gpus(8) }
func (n *busyNode) GetRequested() framework.Resource { return gpus(8 * len(n.pods)) }

type gpus int64

func (gpus) GetMilliCPU() int64                 { return 0 }
func (gpus) GetMemory() int64                   { return 0 }
func (gpus) GetEphemeralStorage() int64         { return 0 }
func (gpus) GetAllowedPodNumber() int           { return 110 }
func (gpus) SetMaxResource(corev1.ResourceList) {}
func (g gpus) GetScalarResources() map[corev1.ResourceName]int64 {
	return map[corev1.ResourceName]int64{gpu: int64(g)}
}

type podOn struct {
	framework.PodInfo
	pod *corev1.Pod
}

func (p podOn) GetPod() *corev1.Pod { return p.pod }

// whole asks for all GPUs of a node, and began to run so long ago.
func whole(name string, ago, lasts time.Duration) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{gpu: *resource.NewQuantity(8, resource.DecimalSI)},
	}}}
	p.Status.StartTime = new(metav1.NewTime(time.Now().Add(-ago)))
	if lasts > 0 {
		p.Annotations = map[string]string{wellknown.ExpectedDuration: lasts.String()}
	}
	return p
}

// fleet are nodes n0, n1, ... each with a pod that ends after so many hours; 0 is a
// free node.
func fleet(hours ...int) (nodes []framework.NodeInfo) {
	for i, h := range hours {
		n := &busyNode{node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}}
		if h > 0 {
			n.pods = []framework.PodInfo{podOn{pod: whole(fmt.Sprint("p", i), 0, time.Duration(h)*time.Hour)}}
		}
		nodes = append(nodes, n)
	}
	return nodes
}

func nodesOf(a *Advance) string {
	var names []string
	for name := range a.Reservations {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// A reservation is of the nodes that are free soonest; it stays until it is due or lost,
// and then members stay where there is room by now.
func TestAdvance(t *testing.T) {
	p := New(topologyclient.New(topologyclient.Options{}), gang.Place, sgpu.GPUs{gpu})
	now := time.Now()
	var big Gang
	for i := range 3 {
		pod := whole(fmt.Sprint("big-", i), 0, 0)
		big.Members = append(big.Members, Member{Pod: pod, Class: fit.ClassOf(pod, nil), GPUs: 8})
	}
	big.MinMember, big.Due = 3, true
	reserve := func(nodes []framework.NodeInfo) string {
		t.Helper()
		r := &Request{Gangs: []Gang{big}, Query: fit.Query{Nodes: nodes}}
		if _, reason := p.Plan(r); reason == "" {
			t.Fatal("there is room")
		}
		big.Advance = p.Advance(r, now)
		return nodesOf(&big.Advance)
	}
	if diff := cmp.Diff("n1 n3 n4", reserve(fleet(9, 2, 9, 4, 0, 9))); diff != "" {
		t.Errorf("soonest (-want +got):\n%s", diff)
	}
	if got := big.Advance.Start.Sub(now).Round(time.Hour); got != 4*time.Hour {
		t.Errorf("it starts in %s", got)
	}
	if leaving := big.Advance.Reservations["n1"][0].Leaving; !leaving["p1"] {
		t.Errorf("on n1 %v leave", leaving)
	}
	big.Due = false
	if diff := cmp.Diff("n1 n3 n4", reserve(fleet(1, 2, 1, 4, 0, 1))); diff != "" {
		t.Errorf("another place is sooner (-want +got):\n%s", diff)
	}
	lost := fleet(9, 0, 9, 4, 0, 5)
	lost[3].Node().Spec.Unschedulable = true
	if diff := cmp.Diff("n1 n4 n5", reserve(lost)); diff != "" {
		t.Errorf("n3 is cordoned (-want +got):\n%s", diff)
	}
	big.Due = true
	if diff := cmp.Diff("n0 n1 n4", reserve(fleet(1, 0, 3, 1, 0, 90))); diff != "" {
		t.Errorf("n5 did not become free, n1 and n4 did (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff("", reserve(fleet(9, 9))); diff != "" {
		t.Errorf("two nodes (-want +got):\n%s", diff)
	}
}
