package agent

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

func TestReloadAddsAndRemovesAResource(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	held := r.admit("train", map[string]int{hcas: 2})[hcas]
	r.start("train")
	before := r.report().Bindings
	r.configure("rdma: {resources: [{name: rdma/other, sharers: 2}]}")
	r.list("rdma/other", 16, 0)
	// What a pod holds stays listed, unhealthy; the rest follows in a minute.
	state := r.list(hcas, 0, 512)
	for _, id := range held {
		if !slices.Contains(state.Unhealthy, id) {
			t.Errorf("%s, which a pod holds, left the list", id)
		}
	}
	// The container starts again, with what it had.
	r.start("train")
	if diff := cmp.Diff(before, r.report().Bindings); diff != "" {
		t.Errorf("other devices after the reload:\n%s", diff)
	}
	for _, res := range r.report().Resources {
		if res.Former != (res.Name == hcas) || res.Name == hcas && (res.Reason != "it is not configured any more" || res.Withdrawn != 512) {
			t.Errorf("%+v", res)
		}
	}
	r.configure("")
	r.list(hcas, 512, 0)
	r.list("rdma/other", 0, 16)
}

// TestRenamedGPUs: a GPU is in one resource at a time. The kubelet keeps
// accounts by resource, and would give what a pod has under the old name to
// another pod under the new one.
func TestRenamedGPUs(t *testing.T) {
	const renamed = "example.com/gpu"
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	r.list(hcas, 512, 0)
	held := r.admit("train", map[string]int{gpus: 2, hcas: 1})
	r.start("train")
	before := r.report().Bindings
	r.configure("resources: {gpu: " + renamed + "}\nrdma: {resources: []}")
	// For a minute the kubelet may give out what it had when the name changed.
	r.list(renamed, 0, 8)
	r.list(gpus, 0, 8)
	if got := r.kubelet.State(renamed); got.Updates != 1 {
		t.Errorf("%d lists under the new name, want one", got.Updates)
	}
	r.api.Wait(t, "the condition", func() bool {
		last := r.api.conditions[len(r.api.conditions)-1]
		return last.Reason == string(publish.Draining) &&
			strings.Contains(last.Message, "container main of default/train has it as nvidia.com/gpu")
	})
	// A plugin that starts with the new name knows by the records who has what,
	// and serves the old names for those that have them.
	r.again(t)
	state := r.list(renamed, 6, 2)
	if diff := cmp.Diff(held[gpus], state.Unhealthy); diff != "" {
		t.Errorf("what the pod has is not what is held back (-want +got):\n%s", diff)
	}
	r.list(gpus, 0, 2)
	r.list(hcas, 0, 1)
	other := r.admit("other", map[string]int{renamed: 6})[renamed]
	for _, id := range held[gpus] {
		if slices.Contains(other, id) {
			t.Errorf("two pods have %s", id)
		}
	}
	r.start("other")
	r.start("train")
	after := slices.DeleteFunc(r.report().Bindings, func(b report.Binding) bool { return b.Pod == "other" })
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("other devices under the new configuration:\n%s", diff)
	}
}

// TestNameOfAnotherKind: with HAMi's names nvidia.com/gpu is a share. The name becomes
// that while the daemon runs, once the kubelet has no whole GPU of it any more.
func TestNameOfAnotherKind(t *testing.T) {
	r := newRig(t, "dgx-h100", func(o *Options) { o.Generator = anyNodes{} }).run()
	r.list(gpus, 8, 0)
	held := r.admit("train", map[string]int{gpus: 1})[gpus]
	r.start("train")
	r.configure("mode: sgpu\nsgpu: {gpus: [6, 7]}\nresources: {sgpu: " + gpus + "}")
	r.list(gpus, 0, 8)
	// A minute later the kubelet has what the pod holds.
	forget := func(holders map[string]bool) {
		if s := r.resources.all()[gpus]; s != nil {
			s.plugin.SetHolders(holders, time.Now().Add(2*time.Minute), nil)
		}
	}
	forget(map[string]bool{held[0]: true})
	if state := r.list(gpus, 0, 1); !slices.Equal(state.Unhealthy, held) {
		t.Errorf("%v are left, want %v", state.Unhealthy, held)
	}
	r.kubelet.Delete("default", "train")
	until(t, "shares of both GPUs", func() bool {
		forget(nil) // Again and again: the kubelet's checkpoint may have the pod for a moment.
		state := r.kubelet.State(gpus)
		return len(state.Healthy) == 2*16 && len(state.Unhealthy) == 0
	})
}

func TestLabelsThatChooseTheConfiguration(t *testing.T) {
	r := newRig(t, "dgx-h100")
	r.set("nodes-config", "- nodeSelector: {pool: shared}\n  mode: sgpu\n")
	r.api.Show(false)
	r.run()
	if got := r.kubelet.State(gpus); got.Registrations > 0 {
		t.Errorf("served before the labels are known: %+v", got)
	}
	r.api.EditNode(func(n *corev1.Node) { n.Labels = map[string]string{"pool": "shared"} })
	r.api.Show(true)
	r.list(hcas, 512, 0)
	if got := r.kubelet.State(gpus); len(got.Healthy)+len(got.Unhealthy) > 0 {
		t.Errorf("GPUs were listed that are shared: %+v", got)
	}
	// The Node is deleted, and the kubelet creates it again.
	r.api.Show(false)
	r.api.EditNode(func(n *corev1.Node) { n.Labels = nil })
	r.api.Show(true)
	r.list(gpus, 8, 0)
}

// TestPartitionModeChangesUnderAPod: a GPU whose partition a pod has is given to no other
// pod as a whole, nor are partitions of one that a pod has.
func TestPartitionModeChangesUnderAPod(t *testing.T) {
	const resource = "amd.com/gpu"
	r := newRig(t, "amd-mi300x-cpx")
	r.configure("domains: {vendor: auto}")
	r.run()
	r.list(resource, 64, 0)
	partition := r.admit("a", map[string]int{resource: 1})[resource][0]
	r.start("a")
	cut := r.source.get().GPUs
	at := slices.IndexFunc(cut, func(g machine.GPU) bool { return strings.HasPrefix(partition, g.UUID) })
	r.alter(func(m *machine.Machine) { m.GPUs[at].MIG = machine.MIG{Capable: true, Mode: "SPX/NPS1"} })
	r.list(resource, 56, 9) // The partitions stay listed for a while.
	r.kubelet.Delete("default", "a")
	r.admit("next", map[string]int{resource: 1}) // The kubelet drops what is gone when it gives something.
	r.list(resource, 57, 8)
	for range 57 { // One of them is the GPU.
		name := "b" + strconv.Itoa(len(r.report().Bindings))
		got := r.admit(name, map[string]int{resource: 1})[resource][0]
		r.start(name)
		if got == cut[at].UUID {
			break
		}
	}
	r.alter(func(m *machine.Machine) { m.GPUs[at].MIG = cut[at].MIG })
	r.list(resource, 56, 9)
}

// waitFor polls the report: the agent notifies no one outside it when a GPU moves.
func (r *rig) waitFor(what string, ok func(states []report.GPU) bool) []report.GPU {
	r.t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	timeout := time.After(20 * time.Second)
	for {
		states := r.report().GPUs
		if ok(states) {
			return states
		}
		select {
		case <-ticker.C:
		case <-timeout:
			r.t.Fatalf("%s did not come: %+v", what, states)
		}
	}
}

func counted(mode config.Mode, n int) func([]report.GPU) bool {
	return func(states []report.GPU) bool {
		left := n
		for _, c := range states {
			if c.Mode == string(mode) {
				left--
			}
		}
		return left == 0
	}
}

func TestAGPUInUseKeepsItsMode(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	held := r.admit("train", map[string]int{gpus: 1})[gpus][0]
	r.start("train")
	r.configure("mode: sgpu")
	r.list(gpus, 0, 8)
	states := r.waitFor("seven GPUs move", counted(config.ModeSGPU, 7))
	index := r.report().GPUIndices[held]
	sentence := fmt.Sprintf("GPU %d: native until default/train ends, then sgpu", index)
	if got := states[index].Pending(); got != sentence || states[index].UUID != held {
		t.Errorf("%q, want %q", got, sentence)
	}
	r.api.Wait(t, "the condition", func() bool {
		n := len(r.api.pending)
		return n > 0 && r.api.pending[n-1].True && r.api.pending[n-1].Message == sentence
	})
	for _, res := range r.report().Resources {
		if want := held + ": moves to sgpu when default/train ends"; res.Name == gpus && res.Reason != want {
			t.Errorf("reason %q, want %q", res.Reason, want)
		}
	}
	r.start("train") // Its container starts again.

	r.again(t)
	if diff := cmp.Diff(sentence, r.waitFor("a restart in the middle", func(states []report.GPU) bool {
		return len(states) > index && strings.HasSuffix(states[index].Until, "train ends")
	})[index].Pending()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The kubelet's checkpoint keeps the pod until it is written again.
	r.kubelet.Delete("default", "train")
	r.waitFor("all GPUs move", counted(config.ModeSGPU, 8))
	r.api.Wait(t, "the condition's end", func() bool { return !r.api.pending[len(r.api.pending)-1].True })

	r.configure("mode: native")
	r.list(gpus, 8, 0)
	r.waitFor("all GPUs are back", counted(config.ModeNative, 8))
}

func TestNoNewPodGetsACordonedGPU(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	cordon := func(text string) {
		r.api.EditNode(func(n *corev1.Node) { n.Annotations[wellknown.CordonedGPUs] = text })
	}
	r.list(gpus, 8, 0)
	uuid := r.last.Load().Inventory.Machine.GPUs[3].UUID
	cordon(uuid + ",GPU-gone")
	if got := r.list(gpus, 7, 1).Unhealthy; got[0] != uuid {
		t.Errorf("%v is unhealthy, cordoned is %s", got, uuid)
	}
	r.api.Wait(t, "HeddleReady", func() bool {
		last := r.api.conditions[len(r.api.conditions)-1]
		return !last.True && last.Reason == "Cordoned" && strings.Contains(last.Message, "GPU 3: cordoned")
	})
	if got := r.report(); !got.GPUs[3].Cordoned || !cmp.Equal(got.UnknownCordoned, []string{"GPU-gone"}) {
		t.Errorf("GPUs %+v, unknown cordoned %v", got.GPUs, got.UnknownCordoned)
	}
	// Without the Node, from the disk; and then the annotation counts again.
	r.api.Show(false)
	cordon("")
	r.again(t)
	if got := r.list(gpus, 7, 1).Unhealthy; got[0] != uuid {
		t.Errorf("%v is unhealthy after a restart, cordoned is %s", got, uuid)
	}
	r.api.Show(true)
	r.list(gpus, 8, 0)
}

// The state and the CDI specs of a node are removed while a container runs. No
// other pod gets the GPU that its device ID names, and its annotation stays.
func TestWipedNode(t *testing.T) {
	r, c := sharer(t, "gpus: [0]")
	r.run()
	r.list(slots, 16, 0)
	if err := r.consumer("a", "60/4", nil); err != nil {
		t.Fatal(err)
	}
	until(t, "the pod's annotation", func() bool { return len(c.boundOf("a")) == 1 })
	r.stop()
	if err := errors.Join(os.RemoveAll(r.options.StateDir), os.RemoveAll(r.options.CDIDir)); err != nil {
		t.Fatal(err)
	}
	r.api.Mu.Lock()
	r.api.Unlisted = true
	r.api.Mu.Unlock()
	r.again(t)
	r.list(slots, 16, 0)
	if err := r.consumer("b", "30/4", nil); err == nil || !strings.Contains(err.Error(), "kept for container main of default/a") {
		t.Errorf("before the API server lists the pods: %v", err)
	}
	r.api.Mu.Lock()
	r.api.Unlisted = false
	r.api.Mu.Unlock()
	until(t, "the list of pods", func() bool {
		_, _, known := r.API.Pods()
		return known
	})

	if err := r.consumer("late", "30/4", nil); err == nil || !strings.Contains(err.Error(), "kept for container main of default/a") {
		t.Errorf("error %v", err)
	}
	r.api.Wait(t, "the Event", func() bool {
		return has(r.api.notices, "SGPUDrift container main of default/a has a share without a checkpoint entry")
	})
	if got := c.boundOf("a"); len(got) != 1 {
		t.Errorf("the annotation was changed: %q", got)
	}
	if p := r.api.Pod("a"); p.Annotations[wellknown.SGPUBound] == "" {
		t.Errorf("pod %+v", p)
	}
	if got := r.drifts("unrecorded"); got != 1 {
		t.Errorf("%v drifts", got)
	}
	for _, b := range r.report().Bindings {
		if b.Unrecorded != (b.Pod == "a") {
			t.Errorf("binding %+v", b)
		}
	}
	// Its GPU is free when its pod is gone, and only then.
	if _, err := r.kubelet.StartContainer(t.Context(), "default", "b", "main"); err == nil {
		t.Error("another pod starts although the pod is there")
	}
	r.kubelet.Delete("default", "a")
	r.passed.Add(int64(time.Minute)) // As long as a kubelet may start.
	until(t, "the other pod", func() bool {
		_, err := r.kubelet.StartContainer(t.Context(), "default", "b", "main")
		return err == nil
	})
}
