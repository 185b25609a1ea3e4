package sgpu

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

func scheduler() *Scheduler {
	c := config.Default()
	ignored := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ignored_total", Help: "Ignored annotations.",
	}, []string{"annotation"})
	return New(&c, slog.New(slog.DiscardHandler), ignored)
}

// holding is a node with pods on it.
func holding(n *corev1.Node, pods ...*corev1.Pod) *info {
	i := &info{node: n, generation: 1}
	for _, p := range pods {
		i.pods = append(i.pods, podInfo{pod: p})
	}
	return i
}

func node(taken int) *corev1.Node {
	all := allocation.NodeGPUs{Version: 1, GPUs: []allocation.GPU{
		{UUID: "GPU-a", Index: 0, MemoryMiB: 16 << 10, Slots: 4, Healthy: true, Taken: allocation.Taken{VCore: taken, Slots: min(taken, 1)}},
		{UUID: "GPU-b", Index: 1, MemoryMiB: 16 << 10, Slots: 4, Reason: "lost"},
	}}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{wellknown.SharedGPUs: all.String()}}}
}

func pod(uid string, vcore int64, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid, Annotations: annotations},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
			"nvidia.com/sgpu": *resource.NewQuantity(1, resource.DecimalSI), "nvidia.com/vcore": *resource.NewQuantity(vcore, resource.DecimalSI),
			"nvidia.com/vmemory": *resource.NewQuantity(4, resource.DecimalSI),
		}}}}},
	}
}

func decided(node, uuid string, vcore int) *allocation.Allocation {
	return &allocation.Allocation{Version: 1, Node: node, Containers: map[string][]allocation.Share{"c": {{UUID: uuid, VCore: vcore, MemoryMiB: 4 << 10}}}}
}

func bound(uuid string, vcore int) string {
	b := allocation.Bound{Version: 1, Node: "n", Containers: map[string]allocation.Sharing{
		"c": {Shares: []allocation.Share{{UUID: uuid, VCore: vcore, MemoryMiB: 4 << 10}}, Policy: "fixed-share", By: allocation.ByNode},
	}}
	return b.String()
}

func TestSourcesOfAllocations(t *testing.T) {
	for _, tt := range []struct {
		name      string
		published int
		pods      []*corev1.Pod
		decided   map[types.UID]*allocation.Allocation
		want      [2]int
	}{
		{"the node's count is ignored if every pod has an annotation", 60, nil, nil, [2]int{0, 0}},
		{"a decision that the pod has", 0, []*corev1.Pod{pod("p", 30, map[string]string{wellknown.SGPUAllocation: decided("n", "GPU-a", 30).String()})}, nil, [2]int{30, 0}},
		{"a decision that the pod does not have yet", 0, []*corev1.Pod{pod("p", 30, nil)}, map[types.UID]*allocation.Allocation{"p": decided("n", "GPU-b", 30)}, [2]int{0, 30}},
		{"what was bound before what was decided", 0, []*corev1.Pod{pod("p", 30, map[string]string{
			wellknown.SGPUAllocation: decided("n", "GPU-a", 30).String(), wellknown.SGPUBound: bound("GPU-b", 30),
		})}, nil, [2]int{0, 30}},
		{"a decision for another node", 60, []*corev1.Pod{pod("p", 30, map[string]string{wellknown.SGPUAllocation: decided("m", "GPU-a", 30).String()})}, nil, [2]int{60, 0}},
		{"a pod without annotation: the node's count is the lower bound", 60, []*corev1.Pod{
			pod("p", 30, nil), pod("q", 20, map[string]string{wellknown.SGPUAllocation: decided("n", "GPU-a", 20).String()}),
		}, nil, [2]int{60, 0}},
		{"an invalid annotation", 50, []*corev1.Pod{pod("p", 30, map[string]string{wellknown.SGPUAllocation: `{"version":1,`})}, nil, [2]int{50, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := scheduler()
			for uid, a := range tt.decided {
				s.Restore(uid, a)
			}
			got := s.state(holding(node(tt.published), tt.pods...)).left
			if diff := cmp.Diff(tt.want, [2]int{got[0].VCore, got[1].VCore}); diff != "" {
				t.Errorf("vcore (-want +got):\n%s", diff)
			}
		})
	}
}

// hidden is a consumer of the whole GPU-a, as its node counts it.
func hidden() *corev1.Node {
	n := node(100)
	all, _ := allocation.ParseNodeGPUs(n.Annotations[wellknown.SharedGPUs])
	all.GPUs[0].Exclusive, all.GPUs[0].Taken.MemoryMiB = true, 4<<10
	all.GPUs[1].Healthy, all.GPUs[1].Reason = true, ""
	n.Annotations[wellknown.SharedGPUs] = all.String()
	return n
}

// A pod with 1 % of a GPU blocked all of a node by its own annotations.
func TestForgedAnnotations(t *testing.T) {
	both := func(vcore int) string {
		return `{"version":1,"node":"n","containers":{"c":[` +
			fmt.Sprintf(`{"uuid":"GPU-a","vcore":%d,"memoryMiB":4096},{"uuid":"GPU-b","vcore":%d,"memoryMiB":4096}]}}`, vcore, vcore)
	}
	boundBoth := strings.NewReplacer(`"c":[`, `"c":{"policy":"fixed-share","by":"node","shares":[`, `]}}`, `]}}}`).Replace(both(100))
	running := func(p *corev1.Pod) *corev1.Pod {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
		return p
	}
	memory := decided("n", "GPU-a", 1)
	memory.Containers["c"][0].MemoryMiB = 16 << 10
	for _, tt := range []struct {
		name    string
		node    *corev1.Node
		pod     *corev1.Pod
		want    [2]int
		ignored float64
	}{
		{"1 % claims all of both GPUs", node(1), pod("p", 1, map[string]string{wellknown.SGPUAllocation: both(100)}), [2]int{1, 0}, 1},
		{"1 % claims 1 % of both GPUs", node(1), pod("p", 1, map[string]string{wellknown.SGPUAllocation: both(1)}), [2]int{1, 0}, 1},
		{"1 % is bound to all of both GPUs", node(1), pod("p", 1, map[string]string{wellknown.SGPUBound: boundBoth}), [2]int{1, 0}, 1},
		{"what was bound is forged, what was decided is not", node(1), pod("p", 1, map[string]string{
			wellknown.SGPUBound: boundBoth, wellknown.SGPUAllocation: decided("n", "GPU-a", 1).String(),
		}), [2]int{1, 0}, 1},
		{"1 % claims all memory", node(1), pod("p", 1, map[string]string{wellknown.SGPUAllocation: memory.String()}), [2]int{1, 0}, 1},
		{"a whole GPU without annotations", hidden(), pod("p", 100, nil), [2]int{100, 0}, 0},
		{"a whole GPU claims 1 %", hidden(), pod("p", 100, map[string]string{wellknown.SGPUBound: bound("GPU-b", 1)}), [2]int{100, 0}, 1},
		{"a whole GPU claims to be bound to another", hidden(), pod("p", 100, map[string]string{wellknown.SGPUBound: bound("GPU-b", 100)}), [2]int{100, 100}, 0},
		{"a running one claims that another was decided", hidden(), running(pod("p", 100, map[string]string{
			wellknown.SGPUAllocation: decided("n", "GPU-b", 100).String(),
		})), [2]int{100, 100}, 0},
		{"a request that is not valid any more", hidden(), pod("p", 100, map[string]string{
			wellknown.SGPUBound: bound("GPU-a", 100), wellknown.DefaultDomains().SGPUQoSPolicy(): "any",
		}), [2]int{100, 0}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, registry := scheduler(), prometheus.NewRegistry()
			registry.MustRegister(s.ignored)
			i := holding(tt.node, tt.pod)
			got := s.state(i).left
			if diff := cmp.Diff(tt.want, [2]int{got[0].VCore, got[1].VCore}); diff != "" {
				t.Errorf("vcore (-want +got):\n%s", diff)
			}
			for at := range got {
				if got[at].VCore < 100 && got[at].UsedMiB > 4<<10 {
					t.Errorf("GPU %d has %d MiB taken", at, got[at].UsedMiB)
				}
			}
			ignored := 0.0
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				for _, m := range f.GetMetric() {
					ignored += m.GetCounter().GetValue()
				}
			}
			if ignored != tt.ignored {
				t.Errorf("%v annotations ignored, want %v", ignored, tt.ignored)
			}
		})
	}
}

func TestPlace(t *testing.T) {
	s := scheduler()
	free := s.state(holding(node(0))).left
	r, err := s.Request(pod("p", 60, nil))
	if err != nil {
		t.Fatal(err)
	}
	got, reason := r.place(free, config.PlacementBinpack)
	if diff := cmp.Diff(decided("n", "GPU-a", 60).Containers, got); diff != "" || reason != "" {
		t.Errorf("reason %q (-want +got):\n%s", reason, diff)
	}
	if got := rest(&free[0]); got != 40 {
		t.Errorf("%d percent are left", got)
	}
	if got, reason := r.place(free, config.PlacementBinpack); got != nil || !strings.Contains(reason, "lost") {
		t.Errorf("a second one has %v: %q", got, reason)
	}
}

func shareOf(name string, vcore, gib int64) corev1.Container {
	c := pod(name, vcore, nil).Spec.Containers[0]
	c.Name = name
	c.Resources.Limits["nvidia.com/vmemory"] = *resource.NewQuantity(gib, resource.DecimalSI)
	return c
}

func sidecar(c corev1.Container) corev1.Container {
	c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	return c
}

// A pod takes the most that any of its phases takes, while it is placed and once
// it is on the node; deviceplugin/allocate has the same cases.
func TestContainerPhases(t *testing.T) {
	type list = []corev1.Container
	for _, tt := range []struct {
		name       string
		init, apps list
		takes      quota.Load
		exclusive  bool
		none       bool // it does not fit at all
	}{
		{name: "an init container and one app", init: list{shareOf("i", 30, 1)}, apps: list{shareOf("a", 60, 1)}, takes: quota.Load{VCore: 60, Consumers: 1, MemoryMiB: 1 << 10}},
		{name: "a larger init container", init: list{shareOf("i", 70, 1)}, apps: list{shareOf("a", 60, 2)}, takes: quota.Load{VCore: 70, Consumers: 1, MemoryMiB: 2 << 10}},
		{
			name: "init containers run one by one", init: list{shareOf("i", 70, 1), shareOf("j", 80, 1)},
			apps: list{shareOf("a", 40, 1), shareOf("b", 40, 1)}, takes: quota.Load{VCore: 80, Consumers: 2, MemoryMiB: 2 << 10},
		},
		{
			name: "a sidecar runs beside what comes after it",
			init: list{shareOf("i", 80, 1), sidecar(shareOf("s", 20, 1)), shareOf("j", 70, 1)},
			apps: list{shareOf("a", 60, 1)}, takes: quota.Load{VCore: 90, Consumers: 2, MemoryMiB: 2 << 10},
		},
		{name: "alone in its phase", init: list{shareOf("i", 100, 1)}, apps: list{shareOf("a", 100, 1)}, takes: quota.Load{VCore: 100, Consumers: 1, MemoryMiB: 1 << 10}, exclusive: true},
		{name: "too much beside its sidecar", init: list{sidecar(shareOf("s", 50, 1))}, apps: list{shareOf("a", 60, 1)}, none: true},
		{
			name: "three large init containers, one after another",
			init: list{shareOf("i", 10, 10), shareOf("j", 10, 10), shareOf("k", 10, 10)}, apps: list{shareOf("a", 10, 1)},
			takes: quota.Load{VCore: 10, Consumers: 1, MemoryMiB: 10 << 10},
		},
		{name: "memory too", init: list{shareOf("i", 1, 14)}, apps: list{shareOf("a", 1, 8)}, takes: quota.Load{VCore: 1, Consumers: 1, MemoryMiB: 14 << 10}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p"}, Spec: corev1.PodSpec{InitContainers: tt.init, Containers: tt.apps}}
			s := scheduler()
			r, err := s.Request(p)
			if err != nil {
				t.Fatal(err)
			}
			free := s.state(holding(node(0))).left
			got, reason := r.place(free, config.PlacementBinpack)
			if (reason != "") != tt.none || len(got) != len(tt.init)+len(tt.apps) && !tt.none {
				t.Fatalf("placed %v: %q", got, reason)
			}
			want := quota.GPU{
				UUID: "GPU-a", MemoryMiB: 16 << 10, Slots: 4, NUMA: -1, Exclusive: tt.exclusive,
				VCore: tt.takes.VCore, UsedMiB: tt.takes.MemoryMiB, Consumers: tt.takes.Consumers,
			}
			if !tt.none && !tt.exclusive {
				want.Policy = quota.FixedShare
			}
			if diff := cmp.Diff(want, free[0]); diff != "" {
				t.Errorf("GPU once placed (-want +got):\n%s", diff)
			}
			if tt.none {
				return
			}
			s.Restore("p", &allocation.Allocation{Version: allocation.Version, Node: "n", Containers: got})
			there := s.state(holding(node(0), p)).left
			if diff := cmp.Diff(want, there[0]); diff != "" {
				t.Errorf("GPU with the pod on the node (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInvalidRequestsAndNodes(t *testing.T) {
	s := scheduler()
	plain := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	if r, err := s.Request(plain); r != nil || err != nil {
		t.Errorf("a pod without shares: %v, error %v", r, err)
	}
	if _, err := s.Request(pod("p", 160, nil)); err == nil || !strings.Contains(err.Error(), "container c: ") {
		t.Errorf("160 percent: %v", err)
	}
	for _, text := range []string{"", "{", `{"version":2,"cards":[]}`} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{wellknown.SharedGPUs: text}}}
		if got := s.state(holding(n)).left; got != nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// TestSharesOfEveryMaker: a pod's own resources show whose names count.
func TestSharesOfEveryMaker(t *testing.T) {
	c := config.Default()
	c.Domains.Vendor = wellknown.VendorAuto
	for name, own := range map[*string]string{
		&c.Resources.GPU: "gpu", &c.Resources.SGPU: "sgpu", &c.Resources.VCore: "vcore", &c.Resources.VMemory: "vmemory",
	} {
		*name = c.Domains.VendorKey(own)
	}
	s := New(&c, slog.New(slog.DiscardHandler), prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ignored_total", Help: "Ignored annotations.",
	}, []string{"annotation"}))
	for _, maker := range wellknown.Vendors() {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{}
		for own, n := range map[string]string{"sgpu": "1", "vcore": "30", "vmemory": "4"} {
			p.Spec.Containers[0].Resources.Limits[corev1.ResourceName(maker.Domain+"/"+own)] = resource.MustParse(n)
		}
		r, err := s.Request(p)
		if err != nil || r == nil || len(r.containers) != 1 || r.containers[0].request.VCore != 30 {
			t.Errorf("%s: %+v, %v", maker.Domain, r, err)
		}
		gpu := corev1.ResourceName(maker.Domain + "/gpu")
		if got := s.GPUs().In(map[corev1.ResourceName]int64{"cpu": 1, gpu: 2}); got != gpu {
			t.Errorf("GPUs of %s are %s", maker.Domain, got)
		}
	}
	if got := s.GPUs().In(nil); got != "nvidia.com/gpu" {
		t.Errorf("of a pod without GPUs: %s", got)
	}
}
