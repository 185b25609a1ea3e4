package devicestate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

func TestContainerGetsItsShareAndTheHCABesideIt(t *testing.T) {
	r := shareRig(t)
	uuid := r.gpuIDs(3)[0]
	share := allocation.Share{UUID: uuid, VCore: 60, MemoryMiB: 4096}
	p := r.wants("a", r.chosen("gpu-1", map[string][]allocation.Share{"main": {share}}), sharer("main", "60/4"))
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
		Share: &cdi.DeviceShare{VCore: 60, MemoryMiB: 4096, Policy: "fixed-share"},
	}}
	if diff := cmp.Diff(wantGPU, got.Devices.GPUs); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
	wantBinding := []report.Binding{{
		Namespace: "default", Pod: "a", UID: "uid-a", Container: "main", HCAs: []string{"mlx5_5"},
		HCAIDs: []string{hcaNamed(r.machine, "mlx5_5").PCI}, Class: "PIX", CDINames: names,
		Shares: []allocation.Share{share}, Policy: "fixed-share", By: allocation.ByScheduler,
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

func TestNodePlaces(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*config.NodeConfig)
		before []string // consumers, "vcore/GiB" on device IDs of GPU 0, 1, 2…
		ask    string
		ids    []int
		want   []int
		reason string
	}{
		{name: "the GPU that the device ID names, of equal ones", ask: "10/1", ids: []int{5}, want: []int{5}},
		{name: "the fullest that suffices", before: []string{"30/1", "50/1"}, ask: "40/1", ids: []int{0}, want: []int{1}},
		{
			name: "spread", change: func(c *config.NodeConfig) { c.SGPU.Placement = config.PlacementSpread },
			before: []string{"30/1"}, ask: "40/1", ids: []int{0}, want: []int{1},
		},
		{name: "several GPUs", ask: "2:10/1", ids: []int{6, 4}, want: []int{4, 6}},
		{name: "a GPU alone", before: []string{"1/1"}, ask: "/4", ids: []int{0}, want: []int{1}},
		{name: "an exclusive GPU", ask: "", ids: []int{2}, want: []int{2}},
		{
			name: "two with 40 % left", before: []string{"60/1", "60/1"}, ask: "60/1", ids: []int{0},
			change: func(c *config.NodeConfig) { c.SGPU.GPUs = []config.GPURef{"0", "1"} },
			reason: "container main gets no GPU: none of 2 GPUs can give 60 % of compute and 1 GiB. " +
				"GPUs 0-1: 40 % of 100 left; needs 60",
		},
		{
			name: "no scheduler chose", change: func(c *config.NodeConfig) { c.SGPU.Unscheduled = config.UnscheduledReject },
			ask: "10/1", ids: []int{0},
			reason: "container main gets no GPU: no scheduler chose a GPU, and sgpu.unscheduled is reject",
		},
		{name: "more memory than any GPU", ask: "10/100", ids: []int{0}, reason: "79.6 GiB in all; needs 100"},
		{name: "more cards than there are", ask: "9:10/1", ids: []int{0, 1, 2, 3, 4, 5, 6, 7, 0}, reason: "9 GPUs are requested and the node shares 8"},
		{name: "vcore 0", ask: "0/1", ids: []int{0}, reason: "nvidia.com/vcore: 0 is not 1 to 100 percent"},
		{name: "vcore 101", ask: "101/1", ids: []int{0}, reason: "nvidia.com/vcore: 101 is not 1 to 100 percent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shareRig(t)
			if tt.change != nil {
				r.reconfigure(tt.change)
			}
			for i, text := range tt.before {
				// Each on the GPU that it names, by annotation.
				share := r.share(i, text)
				r.wants("before-"+string(rune('a'+i)), r.chosen("gpu-1", map[string][]allocation.Share{"main": {share}}), sharer("main", text))
				want := asks{slots: {r.slot(i, 0)}}
				r.allocate(pod("before-"+string(rune('a'+i))), "main", want)
				r.start(want)
			}
			r.wants("a", nil, sharer("main", tt.ask))
			want := asks{}
			for i, gpu := range tt.ids {
				want[slots] = append(want[slots], r.slot(gpu, 8+i))
			}
			names := r.allocate(pod("a"), "main", want)
			for range 3 {
				err := r.prepareShares(want)
				if tt.reason == "" && err != nil {
					t.Fatal(err)
				}
				if tt.reason != "" && (err == nil || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(tt.reason))) {
					t.Fatalf("error %v\nwant  %s", err, tt.reason)
				}
			}
			r.nothingOvercommitted()
			if tt.reason != "" {
				if e := r.specs.takeEvents(); len(e) != 1 || !strings.Contains(e[0], "default/a SGPURejected: container main gets no GPU: ") {
					t.Errorf("events %q, want one", e)
				}
				if all := r.Rejections(); len(all) != 1 || all[0].Pod.Name != "a" || all[0].Container != "main" || !all[0].Since.Equal(r.now) {
					t.Errorf("rejected: %+v", all)
				}
				if _, err := r.enter(names); err == nil {
					t.Error("a rejected container can start")
				}
				return
			}
			if diff := cmp.Diff(tt.want, r.gpusOf("a", "main")); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
			if len(r.Rejections()) > 0 {
				t.Errorf("rejected: %+v", r.Rejections())
			}
		})
	}
}

// share is a part of a GPU, "vcore/GiB".
func (r *rig) share(gpu int, text string) allocation.Share {
	list := ask(text)
	vcore, memory := list["nvidia.com/vcore"], list["nvidia.com/vmemory"]
	return allocation.Share{UUID: r.gpuIDs(gpu)[0], VCore: int(vcore.Value()), MemoryMiB: memory.Value() * 1024}
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
	if got := r.Rejections(); len(got) != 1 || got[0].Pod.Name != "third" || got[0].Kind != allocate.RejectedFull {
		t.Errorf("rejected %+v", got)
	}
	r.kubelet.Delete("default", "first")
	r.consumer("other", "1/1", r.slot(1, 1)) // The kubelet forgets the devices of gone pods when it admits the next.
	if err := r.prepareShares(third); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{0}, r.gpusOf("third", "main")); diff != "" || len(r.Rejections()) > 0 {
		t.Errorf("GPUs (-want +got):\n%srejected %v", diff, r.Rejections())
	}
}

// TestAllOfAPodOrNothing: a pod that could have one of its GPUs takes none.
func TestAllOfAPodOrNothing(t *testing.T) {
	r := shareRig(t, "0")
	r.wants("two", nil, sharer("a", "60/1"), sharer("b", "60/1"))
	a, b := asks{slots: {r.slot(0, 0)}}, asks{slots: {r.slot(0, 1)}}
	r.allocate(pod("two"), "a", a)
	r.allocate(pod("two"), "b", b)
	if err := r.prepareShares(a); err == nil || !strings.Contains(err.Error(), "container b gets no GPU") {
		t.Fatalf("error %v", err)
	}
	r.start(r.consumer("one", "90/1", r.slot(0, 2)))
	if got := r.View().Allocations(); len(got) != 1 || got[0].Pod != "one" {
		t.Errorf("bindings %+v", got)
	}
}

// TestPodIsDecidedAtOnce: what the second container has is on disk before the
// first starts.
func TestPodIsDecidedAtOnce(t *testing.T) {
	r := shareRig(t, "0")
	r.wants("two", nil, sharer("a", "50/1"), sharer("b", "50/1"))
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

func TestPhasesOfAPod(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	sidecar := func(c corev1.Container) corev1.Container {
		c.RestartPolicy = &always
		return c
	}
	for _, tt := range []struct {
		name  string
		init  []corev1.Container
		apps  []corev1.Container
		fits  string // what another pod can still have
		wants string // what it cannot
		none  bool   // the pod itself does not fit
	}{
		{name: "an init container and one app", init: []corev1.Container{sharer("i", "30/1")}, apps: []corev1.Container{sharer("a", "60/1")}, fits: "40/1", wants: "41/1"},
		{name: "a larger init container", init: []corev1.Container{sharer("i", "70/1")}, apps: []corev1.Container{sharer("a", "60/1")}, fits: "30/1", wants: "31/1"},
		{
			name: "init containers run one by one", init: []corev1.Container{sharer("i", "70/1"), sharer("j", "80/1")},
			apps: []corev1.Container{sharer("a", "40/1"), sharer("b", "40/1")}, fits: "20/1", wants: "21/1",
		},
		{
			name: "a sidecar runs beside what comes after it",
			init: []corev1.Container{sharer("i", "80/1"), sidecar(sharer("s", "20/1")), sharer("j", "70/1")},
			apps: []corev1.Container{sharer("a", "60/1")}, fits: "10/1", wants: "11/1",
		},
		{
			name: "alone in its phase", init: []corev1.Container{sharer("i", "100/1")}, apps: []corev1.Container{sharer("a", "100/1")},
			wants: "1/1",
		},
		{name: "too much beside its sidecar", init: []corev1.Container{sidecar(sharer("s", "50/1"))}, apps: []corev1.Container{sharer("a", "60/1")}, none: true},
		{name: "memory too", init: []corev1.Container{sharer("i", "1/70")}, apps: []corev1.Container{sharer("a", "1/40")}, fits: "1/9", wants: "1/10"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shareRig(t, "0")
			p := r.wants("p", nil, tt.apps...)
			p.Spec.InitContainers = tt.init
			var all []asks
			for i, c := range append(append([]corev1.Container{}, tt.init...), tt.apps...) {
				want := asks{slots: {r.slot(0, i)}}
				r.allocate(pod("p"), c.Name, want)
				all = append(all, want)
			}
			for _, want := range all {
				if err := r.prepareShares(want); (err != nil) != tt.none {
					t.Fatalf("error %v", err)
				}
			}
			if tt.none {
				return
			}
			if tt.wants != "" {
				if err := r.prepareShares(r.consumer("more", tt.wants, r.slot(0, 14))); err == nil {
					t.Errorf("another pod has %s", tt.wants)
				}
			}
			if tt.fits != "" {
				if err := r.prepareShares(r.consumer("fits", tt.fits, r.slot(0, 15))); err != nil {
					t.Errorf("another pod does not get %s: %v", tt.fits, err)
				}
			}
		})
	}
}

// TestDeviceIDsOfInitContainersAreTakenOver: the kubelet gives an app container
// the device IDs of an init container; both get the same GPU if it has room, and
// the app container another one if not.
func TestDeviceIDsOfInitContainersAreTakenOver(t *testing.T) {
	for _, tt := range []struct {
		name, taken string
		want        []int
	}{
		{"room on one GPU", "", []int{0}},
		{"only for the init container", "60/1", []int{1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := shareRig(t, "0", "1")
			p := r.wants("p", nil, sharer("app", "50/1"))
			p.Spec.InitContainers = []corev1.Container{sharer("init", "20/1")}
			ids := asks{slots: {r.slot(0, 0)}}
			if tt.taken != "" {
				r.wants("other", r.chosen("gpu-1", map[string][]allocation.Share{"main": {r.share(0, tt.taken)}}), sharer("main", tt.taken))
				other := asks{slots: {r.slot(1, 5)}}
				r.allocate(pod("other"), "main", other)
				r.start(other)
				p.Annotations = r.chosen("gpu-1", map[string][]allocation.Share{
					"init": {r.share(0, "20/1")}, "app": {r.share(1, "50/1")},
				})
			}
			r.kubelet.Add(pod("p"))
			r.allocate(pod("p"), "init", ids)
			r.allocate(pod("p"), "app", ids)
			r.start(ids)
			if diff := cmp.Diff(tt.want, r.gpusOf("p", "app")); diff != "" {
				t.Errorf("app (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]int{0}, r.gpusOf("p", "init")); diff != "" {
				t.Errorf("init (-want +got):\n%s", diff)
			}
		})
	}
}
