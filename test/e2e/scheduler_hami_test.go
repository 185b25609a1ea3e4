//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/cluster"
)

// theirScheduler is what HAMi's webhook writes into a pod.
const theirScheduler = "hami-scheduler"

// hamiNode is a node as HAMi's NVIDIA backend leaves it: ten shares of each GPU, and
// its registration in the format of HAMi 2.8.
func hamiNode(name string) cluster.SimulatedNode {
	return cluster.SimulatedNode{
		Name: name, Capacity: map[string]string{gpu: "10"},
		Annotations: map[string]string{
			"hami.io/node-handshake": "Requesting_2026-11-22 15:17:17",
			"hami.io/node-nvidia-register": `[{"id":"GPU-nv-1","index":0,"count":10,"devmem":143771,"devcore":100,` +
				`"type":"NVIDIA-NVIDIA H200","numa":0,"mode":"hami-core","health":true}]`,
		},
	}
}

// TestMigrationFromHAMi: a node that HAMi still has and one that heddle has, and one
// pod template for both. What no webhook of HAMi's took goes to heddle's node, on a GPU
// with room and with the memory in MiB that it asks for; HAMi's node and pod stay as
// HAMi left them, also when heddle's node is given back.
func TestMigrationFromHAMi(t *testing.T) {
	const resources = "config.cluster.resources."
	f := newFleet(t, resources+"sgpu=nvidia.com/gpu", resources+"vcore=nvidia.com/gpucores", resources+"vmemory=nvidia.com/gpumem",
		resources+"vmemoryUnit=MiB", resources+"vmemoryPercentage=nvidia.com/gpumem-percentage", "config.cluster.sgpu.defaults.vcore=0")
	f.assign(t)
	moved := sharing("moved")
	moved.Capacity = map[string]string{gpu: "128"}
	theirs := hamiNode("theirs")
	f.nodes(t, moved, theirs)
	f.leader(t)
	template := func(name string) *corev1.Pod {
		p := f.pod(name, 1, nil)
		limits := p.Spec.Containers[0].Resources.Limits
		limits["nvidia.com/gpucores"], limits["nvidia.com/gpumem"] = resource.MustParse("30"), resource.MustParse("3000")
		return p
	}

	// HAMi's part, played by what it writes.
	first := f.byHAMi(t, template("hami-0"), theirs.Name, nvidiaBackend(theirs.Name), nil)
	for _, name := range []string{"moved-0", "moved-1", "moved-2", "moved-3"} {
		f.create(t, template(name))
	}
	if got := f.running(t, time.Minute, "moved-", 4); got[moved.Name] != 4 {
		t.Errorf("the pods that HAMi did not take are on %v", got)
	}
	vcore := map[string]int{}
	for _, p := range f.podsOf(t, "moved-") {
		a, err := allocation.ParseAllocation(p.Annotations[wellknown.SGPUAllocation])
		if err != nil || len(a.Containers["main"]) != 1 {
			t.Fatalf("%s has %q: %v", p.Name, p.Annotations[wellknown.SGPUAllocation], err)
		}
		share := a.Containers["main"][0]
		if share.VCore != 30 || share.MemoryMiB != 3000 {
			t.Errorf("%s has %+v", p.Name, share)
		}
		vcore[share.UUID] += share.VCore
	}
	for uuid, sum := range vcore {
		if sum > 100 {
			t.Errorf("GPU %s has %d %% of compute given out", uuid, sum)
		}
	}

	// A percentage is of the GPU that is chosen; nothing but the count limits.
	half := template("half")
	limits := half.Spec.Containers[0].Resources.Limits
	delete(limits, "nvidia.com/gpumem")
	delete(limits, "nvidia.com/gpucores")
	limits["nvidia.com/gpumem-percentage"] = resource.MustParse("50")
	f.create(t, half)
	f.running(t, time.Minute, "half", 1)
	if a, err := allocation.ParseAllocation(f.podsOf(t, "half")[0].Annotations[wellknown.SGPUAllocation]); err != nil ||
		a.Containers["main"][0].MemoryMiB != gpuMiB/2 || a.Containers["main"][0].VCore != 0 {
		t.Errorf("half of a GPU is %+v (%v)", a, err)
	}

	// And back: heddle's node publishes no GPUs any more and is HAMi's again.
	f.kubectl(t, "annotate", "node", moved.Name, wellknown.SharedGPUs+"-")
	f.create(t, template("back-0"))
	f.rejected(t, "back-0", 1, "no shared GPUs")
	again := f.byHAMi(t, template("again-0"), moved.Name, nvidiaBackend(moved.Name), nil)

	node, err := f.client.CoreV1().Nodes().Get(t.Context(), theirs.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range theirs.Annotations {
		if got := node.Annotations[key]; got != want {
			t.Errorf("HAMi's node has %s: %q, want %q", key, got, want)
		}
	}
	for _, was := range []*corev1.Pod{first, again} {
		now, err := f.client.CoreV1().Pods(f.namespace).Get(t.Context(), was.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(was.Annotations, now.Annotations); diff != "" || now.Spec.SchedulerName != theirScheduler {
			t.Errorf("%s of %s (-HAMi's +now):\n%s", was.Name, now.Spec.SchedulerName, diff)
		}
	}
}

// nvidiaBackend is what HAMi's scheduler writes into a pod of its NVIDIA backend, in the format
// of HAMi 2.8.
func nvidiaBackend(node string) map[string]string {
	return map[string]string{
		wellknown.HAMiNode: node, wellknown.HAMiBindPhase: "allocating",
		"hami.io/vgpu-devices-to-allocate": "GPU-nv-1,NVIDIA,3000,30:;",
		"hami.io/vgpu-devices-allocated":   "GPU-nv-1,NVIDIA,3000,30:;",
	}
}

// byHAMi is a pod as HAMi's webhook and scheduler leave it, which write these.
func (f *fleet) byHAMi(t *testing.T, p *corev1.Pod, node string, annotations, labels map[string]string) *corev1.Pod {
	t.Helper()
	p.Spec.SchedulerName = theirScheduler
	f.create(t, p)
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations, "labels": labels}})
	if err != nil {
		t.Fatal(err)
	}
	api := f.client.CoreV1().Pods(f.namespace)
	if _, err := api.Patch(t.Context(), p.Name, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	err = api.Bind(t.Context(), &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: f.namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.running(t, time.Minute, p.Name, 1)
	bound := f.podsOf(t, p.Name)[0]
	if bound.Spec.NodeName != node {
		t.Errorf("%s is on %s", p.Name, bound.Spec.NodeName)
	}
	return &bound
}
