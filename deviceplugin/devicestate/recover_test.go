package devicestate

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	testkubelet "github.com/heddle-dev/heddle/test/kubelet"
)

// bound writes the annotation of a pod, as its node does.
func (r *rig) bound(pod string) {
	r.tb.Helper()
	b := allocation.Bound{Version: 1, Node: "gpu-1", Containers: map[string]allocation.BoundContainer{}}
	for _, x := range r.View().Allocations() {
		if x.Pod == pod {
			b.Containers[x.Container] = allocation.BoundContainer{Shares: x.Shares, Policy: x.Policy, By: x.By}
		}
	}
	r.annotate(pod, b.String())
}

func (r *rig) annotate(pod, text string) {
	p := r.specs.pods["default/"+pod].DeepCopy()
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[wellknown.SGPUBound] = text
	r.specs.pods["default/"+pod] = p
}

// wipe removes all of heddle's files on the disk while the plugin is down.
func (r *rig) wipe() {
	r.tb.Helper()
	if err := errors.Join(os.RemoveAll(r.options.StateDir), os.RemoveAll(r.options.CDIDir)); err != nil {
		r.tb.Fatal(err)
	}
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

func (r *rig) incomplete() bool {
	r.tb.Helper()
	usage, err := r.Reconcile(r.tb.Context())
	if err != nil {
		r.tb.Fatal(err)
	}
	return usage.Incomplete
}

func (r *rig) rejects(why string, want asks, reason string) {
	r.tb.Helper()
	if err := r.prepareShares(want); err == nil || !strings.Contains(err.Error(), reason) {
		r.tb.Errorf("%s: error %v, want %q in it", why, err, reason)
	}
}

const kept = "kept for container main of default/a: its checkpoint entry is lost"

// TestWipedNodeOvercommitsNothing: which GPU a running container has is known by
// its pod's annotation alone. No other pod gets it.
func TestWipedNodeOvercommitsNothing(t *testing.T) {
	r := shareRig(t, "0", "1")
	want := r.consumer("a", "60/40", r.slot(0, 0))
	r.start(want)
	r.bound("a")
	r.wipe()

	r.start(r.consumer("b", "30/10", r.slot(0, 1)))
	if diff := cmp.Diff([]int{1}, r.gpusOf("b", "main")); diff != "" {
		t.Errorf("another pod's GPU (-want +got):\n%s", diff)
	}
	for _, gpus := range [][]string{{r.nothingOvercommitted()[0].Unhealthy}, {r.View().GPUs()[0].Unhealthy}} {
		if gpus[0] != kept {
			t.Errorf("GPU 0: %q", gpus[0])
		}
	}
	a := r.View().Allocations()[0]
	if !a.Unrecorded || a.Pod != "a" || len(a.Shares) != 1 || a.Shares[0] != r.share(0, "60/40") {
		t.Errorf("allocation %+v", a)
	}
	held, err := r.Held(t.Context())
	if err != nil || !slices.ContainsFunc(held, func(h Held) bool { return h.ID == r.gpuIDs(0)[0]+allocate.SlotMark && h.Pod == "default/a" }) {
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

// TestRecoveredGPUIsNotExclusive: another pod that gets it exclusively does not start.
func TestRecoveredGPUIsNotExclusive(t *testing.T) {
	r := shareRig(t, "0")
	r.start(r.consumer("a", "60/40", r.slot(0, 0)))
	r.bound("a")
	r.wipe()
	r.allocate(pod("exclusive"), "main", asks{gpus: r.gpuIDs(0)})
	if err := r.Prepare(t.Context(), gpus, r.gpuIDs(0)); err == nil || !strings.Contains(err.Error(), "is shared by container main of default/a") {
		t.Errorf("error %v", err)
	}
}

// TestRecoveredUntilThePodIsGone, and reported once.
func TestRecoveredUntilThePodIsGone(t *testing.T) {
	r := shareRig(t, "0")
	r.start(r.consumer("a", "60/40", r.slot(0, 0)))
	r.bound("a")
	r.wipe()
	const message = "unrecorded: the checkpoint entry and the CDI spec of container main of default/a were lost; " +
		"no other pod gets the 1 GPUs that it may have until the pod is gone: delete the pod"
	if diff := cmp.Diff([]string{message}, r.driftsNow()); diff != "" {
		t.Errorf("drifts (-want +got):\n%s", diff)
	}
	// To change the annotation now frees nothing.
	delete(r.specs.pods["default/a"].Annotations, wellknown.SGPUBound)
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

// TestSiblingsKeepRunning: one container of a pod starts again, and the others
// run on where they are.
func TestSiblingsKeepRunning(t *testing.T) {
	r := shareRig(t, "0", "1")
	r.wants("p", nil, sharer("one", "60/10"), sharer("two", "60/10"))
	one, two := asks{slots: {r.slot(0, 0)}}, asks{slots: {r.slot(1, 0)}}
	r.allocate(pod("p"), "one", one)
	r.allocate(pod("p"), "two", two)
	r.start(one)
	r.start(two)
	r.bound("p")
	before := r.gpusOf("p", "one")
	r.wipe()
	r.start(one)
	if diff := cmp.Diff(before, r.gpusOf("p", "one")); diff != "" {
		t.Errorf("GPUs (-before +after):\n%s", diff)
	}
	for _, a := range r.View().Allocations() {
		if a.Unrecorded != (a.Container == "two") {
			t.Errorf("allocation %+v", a)
		}
	}
	r.rejects("another pod", r.consumer("thief", "50/10", r.slot(1, 1)), "kept for container two of default/p")
	r.start(two)
	r.nothingOvercommitted()
}

// TestRecoveredSiblingsShareAGPU: both containers of a pod, and only that pod's,
// get the GPU again that they shared.
func TestRecoveredSiblingsShareAGPU(t *testing.T) {
	r := shareRig(t, "0")
	r.wants("p", nil, sharer("one", "40/10"), sharer("two", "40/10"))
	one, two := asks{slots: {r.slot(0, 0)}}, asks{slots: {r.slot(0, 1)}}
	r.allocate(pod("p"), "one", one)
	r.allocate(pod("p"), "two", two)
	r.start(one)
	r.start(two)
	r.bound("p")
	r.wipe()
	r.start(one)
	r.rejects("another pod", r.consumer("thief", "10/10", r.slot(0, 2)), "kept for container two of default/p")
	r.start(two)
	if gpus := r.nothingOvercommitted(); gpus[0].VCore != 80 {
		t.Errorf("taken: %+v", gpus[0])
	}
}

// TestNoShareStartsWhilePodsAreUnknown: until the API server has shown the pod of
// a container whose entry is lost, its GPU may be any.
func TestNoShareStartsWhilePodsAreUnknown(t *testing.T) {
	r := shareRig(t, "0")
	r.start(r.consumer("a", "60/40", r.slot(0, 0)))
	r.bound("a")
	r.specs.unknown = true
	r.wipe()
	late := r.consumer("b", "60/4", r.slot(0, 1))
	r.rejects("unknown", late, "the checkpoint entry of container main of default/a was lost, and it is not known yet which GPUs it has")
	if got := r.Rejections(); len(got) > 0 {
		t.Errorf("it is rejected as if that were for good: %+v", got)
	}
	if !r.incomplete() {
		t.Error("it is taken for known which containers have shares")
	}
	r.specs.unknown = false
	r.rejects("known", late, kept)
	if r.incomplete() {
		t.Error("it is taken for unknown which containers have shares")
	}
	r.kubelet.Delete("default", "a")
	r.pass(goneFor + time.Second)
	if err := r.prepareShares(late); err != nil {
		t.Error(err)
	}
}

// TestRecoveredWithoutTheKubeletsCheckpoint: PodResources alone has the holders.
func TestRecoveredWithoutTheKubeletsCheckpoint(t *testing.T) {
	r := shareRig(t, "0")
	r.start(r.consumer("a", "60/40", r.slot(0, 0)))
	r.bound("a")
	late := r.consumer("b", "60/4", r.slot(0, 1))
	r.wipe()
	r.writeCheckpoint("{")
	if _, err := r.Allocate(slots, late[slots]); err != nil {
		t.Fatal(err)
	}
	r.rejects("without checkpoint", late, kept)
	if !r.incomplete() {
		t.Error("it is taken for known which containers have shares")
	}
}

// TestRecoveredInitContainer, which only the kubelet's checkpoint has.
func TestRecoveredInitContainer(t *testing.T) {
	r := shareRig(t, "0")
	p := r.wants("p", nil, corev1.Container{Name: "main"})
	p.Spec.InitContainers = []corev1.Container{sharer("init", "60/10")}
	want := asks{slots: {r.slot(0, 0)}}
	r.allocate(pod("p", testkubelet.Container{Name: "init", Kind: testkubelet.Init}), "init", want)
	r.start(want)
	r.bound("p")
	r.wipe()
	r.rejects("another pod", r.consumer("b", "60/4", r.slot(0, 1)), "kept for container init of default/p")
	if got := r.View().Allocations(); len(got) != 1 || !got[0].Unrecorded || got[0].Container != "init" {
		t.Errorf("allocations %+v", got)
	}
}

// TestAnnotationGivesNoGPU: a container that starts again gets the GPU that the
// node chooses, also if its annotation names another one that is free.
func TestAnnotationGivesNoGPU(t *testing.T) {
	r := shareRig(t, "0", "1")
	want := r.consumer("a", "30/10", r.slot(0, 1))
	r.start(want)
	forged := allocation.Bound{Version: 1, Node: "gpu-1", Containers: map[string]allocation.BoundContainer{"main": {
		Shares: []allocation.Share{r.share(1, "30/10")}, Policy: "fixed-share", By: allocation.ByNode,
	}}}
	r.annotate("a", forged.String())
	r.wipe()
	r.start(want)
	if diff := cmp.Diff([]int{0}, r.gpusOf("a", "main")); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
}

// TestWhichGPUsAreKept of a container whose entry and spec are lost: those of its
// annotation if it can be its own, else those that its device IDs name.
func TestWhichGPUsAreKept(t *testing.T) {
	const uuid0, uuid1 = "GPU-0", "GPU-1" // Stand for those of the machine.
	entry := func(node, container, shares string) string {
		return `{"version":1,"node":"` + node + `","containers":{"` + container + `":{"shares":[` + shares + `],"policy":"fixed-share","by":"node"}}}`
	}
	share := func(uuid string) string { return `{"uuid":"` + uuid + `","vcore":60,"memoryMiB":4096}` }
	own := entry("gpu-1", "main", share(uuid0))
	for _, tt := range []struct {
		name, text string
		change     func(*corev1.Pod)
		kept       []bool // GPUs 0 and 1
	}{
		{"as the node wrote it", own, nil, []bool{true, false}},
		{"another GPU", entry("gpu-1", "main", share(uuid1)), nil, []bool{false, true}},
		{"a GPU that is not there", entry("gpu-1", "main", share("GPU-9")), nil, []bool{false, false}},
		{"two GPUs for one", entry("gpu-1", "main", share(uuid0)+","+share(uuid1)), nil, []bool{true, false}},
		{"of another node", entry("gpu-2", "main", share(uuid1)), nil, []bool{true, false}},
		{"of another container", entry("gpu-1", "side", share(uuid1)), nil, []bool{true, false}},
		{"cut off", own[:50], nil, []bool{true, false}},
		{"none", "", nil, []bool{true, false}},
		{"of a pod that has ended", own, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, []bool{false, false}},
		{"of a later pod of that name", own, func(p *corev1.Pod) { p.UID = "another" }, []bool{false, false}},
		{"none, and its container does not run", "", func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }, []bool{false, false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shareRig(t, "0", "1")
			r.start(r.consumer("a", "60/4", r.slot(0, 0)))
			p := r.specs.pods["default/a"]
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}}
			if tt.text != "" {
				r.annotate("a", strings.NewReplacer(uuid0, r.gpuIDs(0)[0], uuid1, r.gpuIDs(1)[0]).Replace(tt.text))
			}
			if tt.change != nil {
				tt.change(r.specs.pods["default/a"])
			}
			r.wipe()
			usage, err := r.Reconcile(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range tt.kept {
				if got := usage.GPUs[i].Unhealthy == kept; got != want {
					t.Errorf("GPU %d kept %v, want %v: %+v", i, got, want, usage.GPUs[i])
				}
			}
		})
	}
}
