package devicestate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/test/inventorytest"
)

func TestContainerGetsItsShareAndTheHCABesideIt(t *testing.T) {
	r := shareRig(t)
	uuid := r.gpuIDs(3)[0]
	share := allocation.Share{UUID: uuid, VCore: 60, MemoryMiB: 4096}
	p := r.wants("a", r.chosen("gpu-1", map[string][]allocation.Share{"main": {share}}), inventorytest.Sharer("main", "60/4"))
	// The kubelet chose a slot of another GPU and an HCA of the other side.
	want := asks{slots: {r.slot(7, 2)}, hcas: r.deviceIDs("mlx5_11")}
	names := r.allocate(pod("a"), "main", want)
	if err := r.Prepare(t.Context(), hcas, want[hcas]); err != nil {
		t.Fatal(err)
	}
	if err := r.Prepare(t.Context(), slots, want[slots]); err != nil {
		t.Fatal(err)
	}
	got := r.mustEnter(names)
	if diff := cmp.Diff([]string{"/dev/nvidia3", "rdma_cm", "uverbs3"}, got.Nodes); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	wantEnv := []string{
		"HEDDLE_GPUS=" + uuid, "HEDDLE_HCAS=mlx5_5",
		`HEDDLE_SHARES={"shares":[{"uuid":"` + uuid + `","vcore":60,"memoryMiB":4096}],"policy":"fixed-share","by":"heddle-scheduler"}`,
		"NCCL_IB_HCA==mlx5_5:1", "NVIDIA_VISIBLE_DEVICES=void", "UCX_NET_DEVICES=mlx5_5:1",
	}
	if diff := cmp.Diff(wantEnv, got.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	wantGPU := []cdi.DeviceGPU{{
		UUID: uuid, Index: 3, PCI: r.machine.GPUs[3].PCI, HCA: "mlx5_5", Class: "PIX",
		Share: &allocation.Share{UUID: uuid, VCore: 60, MemoryMiB: 4096}, Policy: "fixed-share",
	}}
	if diff := cmp.Diff(wantGPU, got.Devices.GPUs); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	wantBinding := []report.Binding{{
		Namespace: "default", Pod: "a", UID: "uid-a", Container: "main", HCAs: []string{"mlx5_5"},
		HCAIDs: []string{hcaNamed(r.machine, "mlx5_5").PCI}, Class: "PIX", CDINames: names,
		Sharing: allocation.Sharing{Shares: []allocation.Share{share}, Policy: "fixed-share", By: allocation.ByScheduler},
	}}
	if diff := cmp.Diff(wantBinding, r.View().Allocations()); diff != "" {
		t.Errorf("bindings (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{r.slot(7, 2): uuid}, r.View().Assigned(slots)); diff != "" {
		t.Errorf("the device ID stands for (-want +got):\n%s", diff)
	}
	// Later edits of the annotation move nothing, nor does its removal.
	for _, annotations := range []map[string]string{
		r.chosen("gpu-1", map[string][]allocation.Share{"main": {{UUID: r.gpuIDs(0)[0], VCore: 60, MemoryMiB: 4096}}}),
		r.chosen("gpu-2", nil),
		{"heddle.dev/sgpu-allocation": "{"},
		nil,
	} {
		p.Annotations = annotations
		r.restart()
		r.start(want)
		if diff := cmp.Diff(got, r.mustEnter(names)); diff != "" {
			t.Errorf("after %v (-before +now):\n%s", annotations, diff)
		}
	}
	if e := r.specs.takeEvents(); e != nil {
		t.Errorf("events: %v", e)
	}
}

// TestRejectedUntilThereIsRoom: a rejected pod starts as soon as another
// one has ended.
func TestRejectedUntilThereIsRoom(t *testing.T) {
	r := shareRig(t, "0", "1")
	first, second := r.consumer("first", "60/1", r.slot(0, 0)), r.consumer("second", "60/1", r.slot(1, 0))
	r.start(first)
	r.start(second)
	third := r.consumer("third", "60/1", r.slot(0, 1))
	if err := r.prepareShares(third); err == nil {
		t.Fatal("it got a GPU")
	}
	_ = r.prepareShares(third) // It is reported once.
	if got := r.Rejections(); len(got) != 1 || got[0].Pod != "third" || got[0].Kind != allocate.RejectedFull || got[0].Never || !got[0].Since.Equal(r.now) {
		t.Errorf("rejected %+v", got)
	}
	if e := r.specs.takeEvents(); len(e) != 1 || !strings.Contains(e[0], "default/third "+wellknown.EventSGPURejected+": container main gets no GPU: ") {
		t.Errorf("events %q, want one", e)
	}
	r.kubelet.Delete("default", "first")
	r.consumer("other", "1/1", r.slot(1, 1)) // The kubelet forgets the devices of gone pods when it admits the next.
	if err := r.prepareShares(third); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{0}, r.gpusOf("third")); diff != "" || len(r.Rejections()) > 0 {
		t.Errorf("GPUs (-want +got):\n%srejected %v", diff, r.Rejections())
	}
	err := r.prepareShares(r.consumer("fourth", "10/1000", r.slot(1, 2)))
	if got := r.Rejections(); err == nil || len(got) != 1 || !got[0].Never {
		t.Errorf("more than a GPU has: %v, rejected %+v", err, got)
	}
}

// TestPodIsDecidedAtOnce: what the second container has is on disk before the
// first starts.
func TestPodIsDecidedAtOnce(t *testing.T) {
	r := shareRig(t, "0")
	r.wants("two", nil, inventorytest.Sharer("a", "50/1"), inventorytest.Sharer("b", "50/1"))
	a, b := asks{slots: {r.slot(0, 0)}}, asks{slots: {r.slot(0, 1)}}
	r.allocate(pod("two"), "a", a)
	names := r.allocate(pod("two"), "b", b)
	r.start(a)
	r.restart()
	other := r.consumer("other", "10/1", r.slot(0, 2))
	if err := r.prepareShares(other); err == nil {
		t.Error("another pod has a part of what is reserved for the second container")
	}
	r.start(b)
	if got := r.mustEnter(names); len(got.Devices.GPUs) != 1 || got.Devices.GPUs[0].Share.VCore != 50 {
		t.Errorf("it sees %+v", got.Devices)
	}
}

// Without what the pod asks for nothing is decided, and the
// kubelet asks again; once decided it need not be known.
func TestUnknownPod(t *testing.T) {
	r := shareRig(t)
	want := asks{slots: {r.slot(0, 0)}}
	names := r.allocate(pod("a"), "main", want)
	if err := r.prepareShares(want); err == nil || !strings.Contains(err.Error(), "is not known yet") {
		t.Errorf("error %v", err)
	}
	if len(r.Rejections()) > 0 {
		t.Errorf("rejected: %+v", r.Rejections())
	}
	r.wants("a", nil, inventorytest.Sharer("main", "30/10"))
	r.start(want)
	first := r.mustEnter(names)
	delete(r.specs.pods, "default/a")
	r.restart()
	r.start(want)
	if diff := cmp.Diff(first.Devices, r.mustEnter(names).Devices); diff != "" {
		t.Errorf("the pod is not known any more (-before +now):\n%s", diff)
	}
}
