package agent

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
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
		if len(r.api.conditions) == 0 {
			return false
		}
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
