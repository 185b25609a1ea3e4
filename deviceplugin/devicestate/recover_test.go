package devicestate

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

// wipe removes all of heddle's files on the disk while the plugin is down.
func (r *rig) wipe() {
	r.tb.Helper()
	if err := errors.Join(os.RemoveAll(r.options.StateDir), os.RemoveAll(r.options.CDIDir)); err != nil {
		r.tb.Fatal(err)
	}
	r.State = nil
	r.restart()
}

func (r *rig) driftsNow() []string {
	r.tb.Helper()
	usage, err := r.Reconcile(r.tb.Context())
	if err != nil {
		r.tb.Fatal(err)
	}
	var all []string
	for _, d := range usage.Drifts {
		all = append(all, d.Kind+": "+d.Message)
	}
	return all
}

func (r *rig) rejects(why string, want asks, reason string) {
	r.tb.Helper()
	if err := r.prepareShares(want); err == nil || !strings.Contains(err.Error(), reason) {
		r.tb.Errorf("%s: error %v, want %q in it", why, err, reason)
	}
}

const kept = "kept for container main of default/a: no checkpoint entry has its share"

// TestWipedNodeOvercommitsNothing: which GPU a running container has is known by
// its device ID alone. No other pod gets it.
func TestWipedNodeOvercommitsNothing(t *testing.T) {
	r := shareRig(t, "0", "1")
	want := r.consumer("a", "60/40", r.slot(0, 0))
	r.start(want)
	r.wipe()

	r.start(r.consumer("b", "30/10", r.slot(0, 1)))
	if diff := cmp.Diff([]int{1}, r.gpusOf("b")); diff != "" {
		t.Errorf("another pod's GPU (-want +got):\n%s", diff)
	}
	for _, gpus := range [][]string{{r.nothingOvercommitted()[0].Unhealthy}, {r.View().GPUs()[0].Unhealthy}} {
		if gpus[0] != kept {
			t.Errorf("GPU 0: %q", gpus[0])
		}
	}
	a := r.View().Allocations()[0]
	if !a.Unrecorded || a.Pod != "a" || !slices.Equal(a.GPUs, r.gpuIDs(0)) {
		t.Errorf("allocation %+v", a)
	}
	held, err := r.Held(t.Context())
	if err != nil || !slices.ContainsFunc(held, func(h inventory.Held) bool {
		return h.ID == r.gpuIDs(0)[0]+inventory.ReplicaSeparator && h.Pod == "default/a"
	}) {
		t.Errorf("its GPU is not held: %+v, error %v", held, err)
	}

	// It starts again, and there is an entry again.
	r.start(want)
	for _, a := range r.View().Allocations() {
		if a.Unrecorded {
			t.Errorf("after its next start: %+v", a)
		}
	}
	r.nothingOvercommitted()
}

// TestRecoveredUntilThePodIsGone, and reported once.
func TestRecoveredUntilThePodIsGone(t *testing.T) {
	r := shareRig(t, "0")
	r.start(r.consumer("a", "60/40", r.slot(0, 0)))
	r.wipe()
	const message = "unrecorded: container main of default/a has a share without a checkpoint entry, " +
		"which was lost or is another device plugin's; no other pod gets the 1 GPUs that it may have until the pod is gone"
	if diff := cmp.Diff([]string{message}, r.driftsNow()); diff != "" {
		t.Errorf("drifts (-want +got):\n%s", diff)
	}
	r.pass(goneFor + time.Second)
	if got := r.driftsNow(); got != nil {
		t.Errorf("reported again: %q", got)
	}
	late := r.consumer("b", "10/4", r.slot(0, 1))
	r.rejects("the pod is there", late, kept)
	r.kubelet.Delete("default", "a")
	if err := r.prepareShares(late); err != nil {
		t.Errorf("the pod has gone, and its GPU is not free: %v", err)
	}
	if got := r.View().Allocations(); len(got) != 1 || got[0].Pod != "b" {
		t.Errorf("allocations %+v", got)
	}
}

// TestReplicasOfAnotherPlugin: what heddle hands out whole is shared by pods of another
// plugin, under the same name or another one.
func TestReplicasOfAnotherPlugin(t *testing.T) {
	r := newRig(t)
	for i, resource := range []string{gpus, "nvidia.com/gpu.shared"} {
		name := fmt.Sprint("theirs-", i)
		r.spec(name)
		r.kubelet.Assign(pod(name), "main", resource, []string{inventory.ReplicaID(r.gpuIDs(i)[0], 2)}, &v1beta1.ContainerAllocateResponse{})
	}
	r.spec("whole")
	r.kubelet.Assign(pod("whole"), "main", gpus, r.gpuIDs(2), &v1beta1.ContainerAllocateResponse{})
	if _, err := r.Held(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"container main of default/theirs-0 has it as nvidia.com/gpu", "container main of default/theirs-1 has it as nvidia.com/gpu.shared", "",
	}
	for i, want := range want {
		if got := r.View().Elsewhere(gpus, r.gpuIDs(i)[0], ""); got != want {
			t.Errorf("GPU %d: %q, want %q", i, got, want)
		}
	}
}

// TestKeptWhileThePodIsThere, or may be; reported once the pods of the node are known.
func TestKeptWhileThePodIsThere(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*rig, *corev1.Pod)
		kept   bool
		drifts int
	}{
		{"it runs", func(*rig, *corev1.Pod) {}, true, 1},
		{"the API server has not shown the pods", func(r *rig, _ *corev1.Pod) { r.specs.unknown = true }, true, 1},
		{"only the kubelet's checkpoint has it, and the API server has not shown the pods", func(r *rig, _ *corev1.Pod) {
			r.specs.unknown = true
			delete(r.specs.pods, "default/a")
			r.kubelet.Delete("default", "a")
		}, true, 0},
		{"it has ended", func(_ *rig, p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false, 0},
		{"a later pod has its name", func(_ *rig, p *corev1.Pod) { p.UID = "another" }, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shareRig(t, "0", "1")
			r.start(r.consumer("a", "60/4", r.slot(0, 0)))
			tt.change(r, r.specs.pods["default/a"])
			r.wipe()
			usage, err := r.Reconcile(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(usage.Drifts) != tt.drifts {
				t.Errorf("drifts %v, want %d", usage.Drifts, tt.drifts)
			}
			for i, want := range []bool{tt.kept, false} {
				if got := strings.HasPrefix(usage.GPUs[i].Unhealthy, "kept for "); got != want {
					t.Errorf("GPU %d kept %v, want %v: %+v", i, got, want, usage.GPUs[i])
				}
			}
		})
	}
}
