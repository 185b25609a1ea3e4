package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

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

// TestSwitchesBackAndForth has pods come and go while the mode changes: none
// fails for a GPU that has moved, and all GPUs are there in the end.
func TestSwitchesBackAndForth(t *testing.T) {
	r := newRig(t, "dgx-h100").run()
	r.list(gpus, 8, 0)
	for i := range 5 {
		name := fmt.Sprintf("p%d", i)
		r.admit(name, map[string]int{gpus: 1 + i%3})
		r.configure("mode: sgpu")
		r.list(gpus, 0, 8)
		r.waitFor("the free GPUs move", counted(config.ModeSGPU, 8-(1+i%3)))
		r.kubelet.Delete("default", name)
		r.configure("mode: native")
		r.list(gpus, 8, 0)
	}
}
