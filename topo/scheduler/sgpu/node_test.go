package sgpu

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// info is what of a NodeInfo is looked at.
type info struct {
	framework.NodeInfo
	node       *corev1.Node
	pods       []framework.PodInfo
	generation int64
	requested  int64
	// allocatable is how many whole GPUs there are.
	allocatable int64
	// counted are the percents of compute that the kubelet counts, and that pods have; none if most is 0.
	most, counted int64
}

func (i *info) Node() *corev1.Node           { return i.node }
func (i *info) GetPods() []framework.PodInfo { return i.pods }
func (i *info) GetGeneration() int64         { return i.generation }

func (i *info) GetRequested() framework.Resource {
	return requested{gpus: i.requested, vcore: i.counted}
}

func (i *info) GetAllocatable() framework.Resource {
	return requested{gpus: i.allocatable, vcore: i.most}
}

type requested struct {
	framework.Resource
	gpus, vcore int64
}

func (r requested) GetScalarResources() map[corev1.ResourceName]int64 {
	all := map[corev1.ResourceName]int64{"nvidia.com/gpu": r.gpus}
	if r.vcore > 0 {
		all["nvidia.com/vcore"] = r.vcore
	}
	return all
}

type podInfo struct {
	framework.PodInfo
	pod *corev1.Pod
}

func (p podInfo) GetPod() *corev1.Pod { return p.pod }

// TestPodsWithoutAShareCount: a pod with vcore and no share of a GPU takes what the kubelet counts.
func TestPodsWithoutAShareCount(t *testing.T) {
	s := scheduler()
	r, err := s.Request(pod("p", 30, nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		most, counted int64
		want          string
	}{
		{0, 0, ""}, // The kubelet does not count.
		{200, 170, ""},
		{200, 171, "node(s) have no nvidia.com/vcore left that their kubelet counts: 29 of 200; needs 30"},
		{200, 300, "node(s) have no nvidia.com/vcore left that their kubelet counts: 0 of 200; needs 30"},
	} {
		i := holding(node(0))
		i.most, i.counted = tt.most, tt.counted
		if got := s.Filter(r, i).Message(); got != tt.want {
			t.Errorf("%d of %d: %q, want %q", tt.counted, tt.most, got, tt.want)
		}
	}
}

func TestStateFollowsGenerations(t *testing.T) {
	s := scheduler()
	i := holding(node(0))
	taken := func() int {
		t.Helper()
		return s.state(i).left[0].VCore
	}
	share := func(name string, vcore int64) podInfo {
		return podInfo{pod: pod(name, vcore, map[string]string{wellknown.SGPUAllocation: decided("n", "GPU-a", int(vcore)).String()})}
	}
	got := []int{taken()}
	i.pods = []framework.PodInfo{share("p", 30)} // As a PodGroup's cycle tries it out.
	got = append(got, taken())
	i.pods = []framework.PodInfo{share("q", 10)}
	got = append(got, taken())
	i.generation = 2
	got = append(got, taken(), taken())
	if diff := cmp.Diff([]int{0, 30, 30, 10, 10}, got); diff != "" {
		t.Errorf("vcore of no pod, of one more, of another at the same generation, at the next, again (-want +got):\n%s", diff)
	}
	i.generation, i.node = 3, node(0)
	i.node.Annotations = nil
	for range 2 {
		if s.state(i).left != nil {
			t.Error("a node without an annotation has GPUs")
		}
	}
	s.ForgetNode("n")
	if got := func() int { i.node = node(0); return taken() }(); got != 10 {
		t.Errorf("a node that was forgotten has %d percent taken", got)
	}
}

// A Node that changed has no second state, and what its pods take is not read again.
func TestOneStateOfEachNode(t *testing.T) {
	s := scheduler()
	taking := pod("p", 30, map[string]string{wellknown.SGPUAllocation: decided("n", "GPU-a", 30).String()})
	before := s.state(holding(node(0), taking)).pods[taking]
	if now := s.state(holding(node(0), taking)).pods[taking]; now != before {
		t.Error("the pod's claims were read again")
	}
	count := func() (n int) {
		s.states.Range(func(any, any) bool { n++; return true })
		return n
	}
	got := []int{count()}
	s.ForgetNode("n")
	if diff := cmp.Diff([]int{1, 0}, append(got, count())); diff != "" {
		t.Errorf("states after another object of the node, and after the node is gone (-want +got):\n%s", diff)
	}
}

// Filter and Score try a request without taking anything.
func TestFilterTakesNothing(t *testing.T) {
	s := scheduler()
	i := holding(node(0))
	fits := func(vcore int64) bool {
		t.Helper()
		r, err := s.Request(pod("new", vcore, nil))
		if err != nil {
			t.Fatal(err)
		}
		fits := s.Filter(r, i).IsSuccess()
		before, after := s.Use(nil, i), s.Use(r, i)
		if fits != (after.Idle < before.Idle) {
			t.Fatalf("fits: %t, and %d of %d percent are left", fits, after.Idle, before.Idle)
		}
		return fits
	}
	want := []bool{true, true, true, true, false}
	got := []bool{fits(60), fits(60), fits(30)}
	i.generation = 2
	i.pods = append(i.pods, podInfo{pod: pod("p", 50, map[string]string{wellknown.SGPUAllocation: decided("n", "GPU-a", 50).String()})})
	if diff := cmp.Diff(want, append(got, fits(30), fits(60))); diff != "" {
		t.Errorf("60 %%, 60 %%, 30 %%, and beside 50 %% 30 %% and 60 %%, (-want +got):\n%s", diff)
	}
}

// TestFilterGoesByRoom: under sgpu.memoryOvercommit shares may have more than the GPU
// has, and one share may not.
func TestFilterGoesByRoom(t *testing.T) {
	on := func(mib, room int64) bool {
		all := allocation.NodeGPUs{Version: 1, GPUs: []allocation.GPU{{UUID: "GPU-a", MemoryMiB: mib, RoomMiB: room, Slots: 4, Healthy: true}}}
		n := node(0)
		n.Annotations[wellknown.SharedGPUs] = all.String()
		s := scheduler()
		r, err := s.Request(pod("new", 10, nil)) // 4 GiB.
		if err != nil {
			t.Fatal(err)
		}
		had := func(uid string) *corev1.Pod {
			return pod(uid, 10, map[string]string{wellknown.SGPUAllocation: decided("n", "GPU-a", 10).String()})
		}
		return s.Filter(r, holding(n, had("p"), had("q"))).IsSuccess()
	}
	got := []bool{on(8<<10, 0), on(8<<10, 12<<10), on(8<<10, 12<<10-1), on(4<<10-1, 100<<10)}
	if diff := cmp.Diff([]bool{false, true, false, false}, got); diff != "" {
		t.Errorf("beside 8 GiB: 8 GiB, room for 12, for less, and a smaller GPU (-want +got):\n%s", diff)
	}
}
