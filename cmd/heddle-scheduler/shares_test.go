package main

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// sharedNode has shared GPUs of 16 GiB.
func sharedNode(name string, gpus int) *corev1.Node {
	n := node(name, 0)
	all := allocation.NodeGPUs{Version: allocation.Version, GPUs: []allocation.GPU{}}
	for i := range gpus {
		all.GPUs = append(all.GPUs, allocation.GPU{
			UUID: fmt.Sprintf("GPU-%s-%d", name, i), Index: i, MemoryMiB: 16 << 10, Slots: 16, Healthy: true,
		})
	}
	n.Annotations = map[string]string{wellknown.SharedGPUs: all.String()}
	for _, list := range []corev1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
		list["nvidia.com/sgpu"] = *resource.NewQuantity(int64(16*gpus), resource.DecimalSI)
		list["nvidia.com/vcore"] = *resource.NewQuantity(int64(100*gpus), resource.DecimalSI)
		list["nvidia.com/vmemory"] = *resource.NewQuantity(int64(16*gpus), resource.DecimalSI)
	}
	return n
}

func share(name string, gpus, vcore, vmemory int64) *corev1.Pod {
	p := pod(name, 0, nil)
	for _, list := range []corev1.ResourceList{p.Spec.Containers[0].Resources.Limits, p.Spec.Containers[0].Resources.Requests} {
		list["nvidia.com/sgpu"] = *resource.NewQuantity(gpus, resource.DecimalSI)
		list["nvidia.com/vcore"] = *resource.NewQuantity(vcore, resource.DecimalSI)
		list["nvidia.com/vmemory"] = *resource.NewQuantity(vmemory, resource.DecimalSI)
	}
	return p
}

func TestSharesAreAllocatedPerGPU(t *testing.T) {
	w := start(t, args(""), sharedNode("a", 2), sharedNode("b", 1))
	// 60 percent each: one to a GPU, although the nodes' totals have room for
	// five.
	for i := range 4 {
		w.add(share(fmt.Sprintf("s-%d", i), 1, 60, 4))
	}
	pods := w.until("three bound, one rejected", func(pods map[string]*corev1.Pod) bool {
		rejected := 0
		for _, p := range pods {
			if strings.Contains(why(p), "no shared GPU with room") {
				rejected++
			}
		}
		return bound(pods, "s") == 3 && rejected == 1
	})
	used := map[string]int{}
	for name, p := range pods {
		if p.Spec.NodeName == "" {
			t.Log(why(p))
			continue
		}
		got, err := allocation.ParseAllocation(p.Annotations[wellknown.SGPUAllocation])
		if err != nil || got.Node != p.Spec.NodeName || len(got.Containers["c"]) != 1 || got.Containers["c"][0].MemoryMiB != 4<<10 {
			t.Errorf("%s has %+v, error %v", name, got, err)
			continue
		}
		used[got.Containers["c"][0].UUID] += got.Containers["c"][0].VCore
	}
	if len(used) != 3 {
		t.Errorf("GPUs have %v", used)
	}
	// A pod that goes leaves its GPU.
	for name, p := range pods {
		if p.Spec.NodeName != "" {
			w.delete(name)
			break
		}
	}
	w.until("the fourth bound", func(pods map[string]*corev1.Pod) bool { return bound(pods, "s") == 3 && len(pods) == 3 })
	w.add(share("two", 2, 40, 4))
	pods = w.whole("two", 1)
	if got, err := allocation.ParseAllocation(pods["two"].Annotations[wellknown.SGPUAllocation]); err != nil || len(got.Containers["c"]) != 2 {
		t.Errorf("two has %+v, error %v", got, err)
	}
}

// gpu-aware: the node whose GPUs fit best wins; one that publishes nothing never does.
func TestGPUAware(t *testing.T) {
	good, bad, silent := node("good", 4), node("bad", 4), node("silent", 4)
	good.Annotations = map[string]string{wellknown.GPUTopology: `{"2":{"score":600,"loss":100,"hcas":1}}`}
	bad.Annotations = map[string]string{wellknown.GPUTopology: `{"2":{"score":600,"loss":500,"hcas":1},"1":{"score":0,"loss":0}}`}
	w := start(t, args(""), silent, bad, good)
	p := pod("sample-pod", 2, nil)
	w.add(p)
	w.until("on the good node", func(pods map[string]*corev1.Pod) bool { return pods["sample-pod"].Spec.NodeName == "good" })
}

// Pods of no gang fill used nodes before whole ones, those without GPUs too.
func TestWholeNodesStayWhole(t *testing.T) {
	var nodes []*corev1.Node
	for i := range 6 {
		nodes = append(nodes, node(fmt.Sprintf("n%d", i), 4))
	}
	w := start(t, args(""), nodes...)
	on := map[string]int{}
	for i := range 8 {
		name := fmt.Sprintf("gpu-%d", i)
		w.add(pod(name, 1, nil))
		pods := w.until(name+" bound", func(pods map[string]*corev1.Pod) bool { return pods[name].Spec.NodeName != "" })
		on[pods[name].Spec.NodeName]++
	}
	if len(on) != 2 {
		t.Errorf("8 pods of one GPU are on %v, with 4 GPUs each", on)
	}
	for i := range 4 {
		name := fmt.Sprintf("none-%d", i)
		w.add(pod(name, 0, nil))
		pods := w.until(name+" bound", func(pods map[string]*corev1.Pod) bool { return pods[name].Spec.NodeName != "" })
		on[pods[name].Spec.NodeName]++
	}
	if len(on) != 2 {
		t.Errorf("with 4 pods without GPUs: %v", on)
	}
}

// TestAPodPreemptsShares: as many pods of a lower priority go as must, on whatever GPU they are, also if the node's
// annotation counts them.
func TestAPodPreemptsShares(t *testing.T) {
	for _, tt := range []struct {
		name           string
		gpus           int
		low            []int // the GPU of each pod with a low priority
		vcore, vmemory int64 // of these
		want, memory   int64
		victims        int
	}{
		{"a whole GPU", 1, []int{0}, 100, 16, 100, 16, 1},
		{"one of two halves", 1, []int{0, 0}, 50, 8, 50, 8, 1},
		{"the sum has room, no GPU has", 2, []int{0, 1}, 60, 4, 60, 4, 1},
		{"memory of two pods", 2, []int{0, 0, 1, 1}, 10, 7, 10, 12, 2},
	} {
		for _, counted := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.name, ", counted ", counted), func(t *testing.T) {
				n := sharedNode("a", tt.gpus)
				all, err := allocation.ParseNodeGPUs(n.Annotations[wellknown.SharedGPUs])
				if err != nil {
					t.Fatal(err)
				}
				var low []*corev1.Pod
				for i, at := range tt.low {
					p, g := share(fmt.Sprint("low-", i), 1, tt.vcore, tt.vmemory), &all.GPUs[at]
					p.Spec.NodeName, p.Status.Phase, p.UID = "a", corev1.PodRunning, types.UID(p.Name)
					bound := allocation.Bound{Version: allocation.Version, Node: "a", Containers: map[string]allocation.Sharing{"c": {
						Shares: []allocation.Share{{UUID: g.UUID, VCore: int(tt.vcore), MemoryMiB: tt.vmemory << 10}},
						Policy: "fixed-share", By: allocation.ByScheduler,
					}}}
					p.Annotations = map[string]string{wellknown.SGPUBound: bound.String()}
					g.Policy, g.Taken.VCore, g.Taken.Slots = "fixed-share", g.Taken.VCore+int(tt.vcore), g.Taken.Slots+1
					g.Taken.MemoryMiB += tt.vmemory << 10
					low = append(low, p)
				}
				if counted {
					n.Annotations[wellknown.SharedGPUs] = all.String()
				}
				w := unscheduled(t, n)
				for _, p := range low {
					w.add(p)
				}
				w.schedule(withArgs(loaded(t, documented), args("")))
				p := share("high", 1, tt.want, tt.memory)
				p.Spec.Priority = new(int32(1000))
				w.add(p)
				// kube-scheduler loses the end of a victim that is gone at once, as here, and has no grace period. The end
				// of any other pod of the node wakes the preemptor.
				other := pod("other", 0, nil)
				other.Spec.NodeName = "a"
				pods := w.until("bound", func(pods map[string]*corev1.Pod) bool {
					if pods["other"] == nil {
						w.add(other.DeepCopy())
					} else {
						w.delete("other")
					}
					return pods["high"].Spec.NodeName != ""
				})
				if left := bound(pods, "low"); left != len(low)-tt.victims {
					t.Errorf("%d of %d are left, want %d to go", left, len(low), tt.victims)
				}
			})
		}
	}
}
