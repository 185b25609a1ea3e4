package sgpu_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

// info is what of a NodeInfo is looked at.
type info struct {
	framework.NodeInfo
	node       *corev1.Node
	pods       []framework.PodInfo
	generation int64
}

func (i *info) Node() *corev1.Node           { return i.node }
func (i *info) GetPods() []framework.PodInfo { return i.pods }
func (i *info) GetGeneration() int64         { return i.generation }

type podInfo struct {
	framework.PodInfo
	pod *corev1.Pod
}

func (p podInfo) GetPod() *corev1.Pod { return p.pod }

func TestNowFollowsGenerations(t *testing.T) {
	c := config.Default()
	b := sgpu.Book{Config: &c}
	i := &info{node: node(0), generation: 1}
	taken := func() (vcore int) {
		t.Helper()
		got, err := b.Now(i, func(types.UID) *allocation.Allocation { return nil })
		if err != nil {
			t.Fatal(err)
		}
		vcore = got[0].VCore
		got[0].VCore = 77 // Whoever asks may change what it gets.
		return vcore
	}
	share := func(name string, vcore int64) podInfo {
		return podInfo{pod: pod(name, vcore, map[string]string{wellknown.SGPUAllocation: chosen("n", "GPU-a", int(vcore)).String()})}
	}
	got := []int{taken()}
	i.pods = []framework.PodInfo{share("p", 30)} // As a PodGroup's cycle tries it out.
	got = append(got, taken())
	i.pods = []framework.PodInfo{share("q", 10)}
	got = append(got, taken())
	i.generation = 2
	got = append(got, taken(), taken())
	if diff := cmp.Diff([]int{0, 30, 30, 10, 10}, got); diff != "" {
		t.Errorf("vcore of nobody, of one more, of another at the same generation, at the next, again (-want +got):\n%s", diff)
	}
	i.generation, i.node = 3, node(0)
	i.node.Annotations = nil
	for range 2 {
		if _, err := b.Now(i, nil); err == nil {
			t.Error("a node without an annotation has cards")
		}
	}
	b.Forget("n")
	if got := func() int { i.node = node(0); return taken() }(); got != 10 {
		t.Errorf("a node that was forgotten has %d of its cards taken", got)
	}
}

// Pods that want the same share one answer, others and other generations do
// not.
func TestTry(t *testing.T) {
	c := config.Default()
	b := sgpu.Book{Config: &c}
	i := &info{node: node(0), generation: 1}
	try := func(vcore int64) bool {
		t.Helper()
		w, err := sgpu.Read(pod("new", vcore, nil), &c)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Heed(nil); err != nil {
			t.Fatal(err)
		}
		load, why, err := b.Try(i, w, config.PlacementBinpack, func(types.UID) *allocation.Allocation { return nil })
		if err != nil || (why == "") != (load > 0) {
			t.Fatalf("load %d, why %q, error %v", load, why, err)
		}
		return why == ""
	}
	want := []bool{true, true, true, true, false}
	got := []bool{try(60), try(60), try(30)}
	i.generation = 2
	i.pods = append(i.pods, podInfo{pod: pod("p", 50, map[string]string{wellknown.SGPUAllocation: chosen("n", "GPU-a", 50).String()})})
	if diff := cmp.Diff(want, append(got, try(30), try(60))); diff != "" {
		t.Errorf("60 %%, 60 %%, 30 %%, and beside 50 %% 30 %% and 60 %%, (-want +got):\n%s", diff)
	}
}

// BenchmarkNow is what Filter asks of every node for every pod, beside a node's
// worth of pods that share its cards.
func BenchmarkNow(b *testing.B) {
	c := config.Default()
	book := sgpu.Book{Config: &c}
	i := &info{node: node(0), generation: 1}
	for range 60 {
		i.pods = append(i.pods, podInfo{pod: pod("p", 1, map[string]string{wellknown.SGPUAllocation: chosen("n", "GPU-a", 1).String()})})
	}
	for _, tt := range []struct {
		name string
		next int64
	}{{"same", 0}, {"changed", 1}} {
		b.Run(tt.name, func(b *testing.B) {
			for b.Loop() {
				i.generation += tt.next
				if _, err := book.Now(i, func(types.UID) *allocation.Allocation { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
