package agent

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
)

// TestRejectedPodsAreEvicted has two GPUs with 40 % left each, and pods that ask
// for 60 %. The agent evicts the pods that a controller recreates, and no others.
func TestRejectedPodsAreEvicted(t *testing.T) {
	r, c := sharer(t, "gpus: [0, 1], rejectedFor: 1s")
	r.Features = devgpu.Features{IMEX: "0", IMEXByPod: true}
	r.run()
	r.list("nvidia.com/sgpu", 32, 0)
	for _, name := range []string{"a", "b"} {
		if err := r.consumer(name, "60/4", nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"channels", "deployed", "bare", "daemon", "static", "started", "senseless"} {
		ask, annotations := "60/4", map[string]string{}
		switch name {
		case "senseless":
			ask = "0/4"
		case "channels":
			annotations[wellknown.IMEXChannels] = "7"
		}
		if err := r.consumer(name, ask, annotations); err == nil {
			t.Fatalf("%s has a GPU", name)
		}
	}
	r.api.EditPod("bare", func(p *corev1.Pod) { p.OwnerReferences = nil })
	r.api.EditPod("daemon", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" })
	r.api.EditPod("static", func(p *corev1.Pod) { p.Annotations[corev1.MirrorPodAnnotationKey] = uidOf("static") })
	r.api.EditPod("started", func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", RestartCount: 1}}
	})
	until(t, "an eviction", func() bool {
		c.Mu.Lock()
		defer c.Mu.Unlock()
		return len(c.Evicted) > 0
	})
	r.kubelet.Delete("default", "deployed")
	r.api.EditPod("deployed", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
	r.api.Wait(t, "the Event", func() bool { return has(r.api.warnings, "default/deployed SGPUEvicted: rejected for 1s: ") })
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, evicted := range c.Evicted {
		if evicted != "deployed "+uidOf("deployed") {
			t.Errorf("evicted %q", c.Evicted)
		}
	}
}

// TestStrictHCAsEvict has a pod that asks for eight HCAs, of which one has no link.
// It does not wait for ever; one that gets its HCAs in time stays.
func TestStrictHCAsEvict(t *testing.T) {
	r := newRig(t, "dgx-h100")
	r.configure("health: {downAfter: 0s, upAfter: 0s}\nrdma: {rejectedFor: 2s, resources: [{name: " + hcas + ", count: strict}]}\n")
	r.run()
	port := func(state string) {
		r.alter(func(m *machine.Machine) {
			at := slices.IndexFunc(m.HCAs, func(h machine.HCA) bool { return h.Role == machine.RoleFabric })
			m.HCAs[at].Ports[0].State = state
		})
	}
	port(machine.PortDown)
	r.list(hcas, 448, 64)
	ask := func(name string) {
		p := wish(name, map[string]string{hcas: "8"}, nil)
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "job", Controller: new(true)}}
		r.create(p)
		r.admit(name, map[string]int{hcas: 8})
		if _, err := r.kubelet.StartContainer(t.Context(), "default", name, "main"); err == nil {
			t.Fatalf("%s has eight HCAs", name)
		}
	}
	evicted := func() []string {
		r.api.Mu.Lock()
		defer r.api.Mu.Unlock()
		return slices.Clone(r.api.Evicted)
	}
	ask("first")
	port(machine.PortActive)
	r.list(hcas, 512, 0)
	r.start("first")
	if got := r.state.Rejections(); len(got) > 0 {
		t.Errorf("rejections %v", got)
	}
	port(machine.PortDown)
	r.list(hcas, 447, 65) // One device ID of the first pod stands for the HCA without a link.
	ask("second")
	until(t, "an eviction", func() bool { return len(evicted()) > 0 })
	r.api.Wait(t, "the Events", func() bool {
		return has(r.api.warnings, "default/second HCARejected: container main gets no HCA: "+hcas+": 8 HCAs requested, 7 available: ") &&
			has(r.api.warnings, "default/second HCAEvicted: rejected for 2s: "+hcas)
	})
	if got := evicted(); !slices.Equal(slices.Compact(got), []string{"second " + uidOf("second")}) {
		t.Errorf("evicted %q", got)
	}
}

// TestEvictedAgainWaitsLonger: what one controller's pods wait for on a node whose scheduler
// chooses it again and again.
func TestEvictedAgainWaitsLonger(t *testing.T) {
	const patience = time.Minute
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	var last evictedPod
	var waits []time.Duration
	for range 6 {
		since := now.Add(2 * time.Second)
		wait := last.next(since, patience)
		last = evictedPod{since.Add(wait), wait}
		if got := last.next(since.Add(-time.Second), patience); got != wait {
			t.Errorf("one that was rejected beside it waits for %s, want %s", got, wait)
		}
		waits, now = append(waits, wait), last.at
	}
	most := 8 * patience
	if want := []time.Duration{patience, 2 * patience, 4 * patience, most, most, most}; !slices.Equal(waits, want) {
		t.Errorf("rejected for %v, want %v", waits, want)
	}
	if got := last.next(now.Add(16*patience+time.Second), patience); got != patience {
		t.Errorf("much later one waits for %s", got)
	}
}

func TestEvictable(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := wish("a", map[string]string{"nvidia.com/sgpu": "1"}, nil)
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Controller: new(true)}}
		change(p)
		return p
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for _, tt := range []struct {
		name   string
		change func(*corev1.Pod)
		want   string
	}{
		{"never started", func(*corev1.Pod) {}, ""},
		{"its logger has", func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "logger"})
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main"}, {Name: "logger", State: running}}
		}, ""},
		{"it runs", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: running}}
		}, "container main has started"},
		{"it has run", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		}, "container main has started"},
		{"phase", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, "it has started"},
		{"no controller", func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }, "no controller would make another one"},
		{"static", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "Node" }, "it is a static pod"},
		{"DaemonSet", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }, "its DaemonSet would make another one here"},
		{"deleted", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }, "it is on its way out"},
	} {
		if got := notEvictable(pod(tt.change), "nvidia.com/sgpu"); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
