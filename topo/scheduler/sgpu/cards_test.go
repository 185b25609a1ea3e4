package sgpu_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
	"github.com/heddle-dev/heddle/topo/scheduler/sgpu"
)

func node(taken int) *corev1.Node {
	all := allocation.NodeGPUs{Version: 1, Cards: []allocation.GPU{
		{UUID: "GPU-a", Index: 0, MemoryMiB: 16 << 10, Slots: 4, Healthy: true, Taken: allocation.Taken{VCore: taken, Slots: min(taken, 1)}},
		{UUID: "GPU-b", Index: 1, MemoryMiB: 16 << 10, Slots: 4, Reason: "lost"},
	}}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{wellknown.SGPUCards: all.String()}}}
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

func chosen(node, uuid string, vcore int) *allocation.Allocation {
	return &allocation.Allocation{Version: 1, Node: node, Containers: map[string][]allocation.Share{"c": {{UUID: uuid, VCore: vcore, MemoryMiB: 4 << 10}}}}
}

func bound(uuid string, vcore int) string {
	b := allocation.Bound{Version: 1, Node: "n", Containers: map[string]allocation.BoundContainer{
		"c": {Shares: []allocation.Share{{UUID: uuid, VCore: vcore, MemoryMiB: 4 << 10}}, Policy: "fixed-share", By: allocation.ByNode},
	}}
	return b.String()
}

func TestWhatIsBelieved(t *testing.T) {
	for _, tt := range []struct {
		name    string
		said    int
		pods    []*corev1.Pod
		decided map[types.UID]*allocation.Allocation
		want    [2]int
	}{
		{"what the node counted is old news if all pods speak", 60, nil, nil, [2]int{0, 0}},
		{"a decision that the pod shows", 0, []*corev1.Pod{pod("p", 30, map[string]string{wellknown.SGPUAllocation: chosen("n", "GPU-a", 30).String()})}, nil, [2]int{30, 0}},
		{"a decision that it does not show yet", 0, []*corev1.Pod{pod("p", 30, nil)}, map[types.UID]*allocation.Allocation{"p": chosen("n", "GPU-b", 30)}, [2]int{0, 30}},
		{"what was bound before what was decided", 0, []*corev1.Pod{pod("p", 30, map[string]string{
			wellknown.SGPUAllocation: chosen("n", "GPU-a", 30).String(), wellknown.SGPUBound: bound("GPU-b", 30),
		})}, nil, [2]int{0, 30}},
		{"a decision for another node is none", 60, []*corev1.Pod{pod("p", 30, map[string]string{wellknown.SGPUAllocation: chosen("m", "GPU-a", 30).String()})}, nil, [2]int{60, 0}},
		{"a pod that says nothing: the node's count is the least", 60, []*corev1.Pod{
			pod("p", 30, nil), pod("q", 20, map[string]string{wellknown.SGPUAllocation: chosen("n", "GPU-a", 20).String()}),
		}, nil, [2]int{60, 0}},
		{"nonsense is nothing", 50, []*corev1.Pod{pod("p", 30, map[string]string{wellknown.SGPUAllocation: `{"version":1,`})}, nil, [2]int{50, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := config.Default()
			b := sgpu.Book{Config: &c}
			got, err := b.Free(node(tt.said), tt.pods, func(uid types.UID) *allocation.Allocation { return tt.decided[uid] })
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, [2]int{got[0].VCore, got[1].VCore}); diff != "" {
				t.Errorf("vcore (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlace(t *testing.T) {
	c := config.Default()
	b := sgpu.Book{Config: &c}
	free, err := b.Free(node(0), nil, func(types.UID) *allocation.Allocation { return nil })
	if err != nil {
		t.Fatal(err)
	}
	w, err := sgpu.Read(pod("p", 60, nil), &c)
	if err != nil {
		t.Fatal(err)
	}
	got, why := w.Place(free, config.PlacementBinpack)
	if diff := cmp.Diff(chosen("n", "GPU-a", 60).Containers, got); diff != "" || why != "" {
		t.Errorf("why %q (-want +got):\n%s", why, diff)
	}
	if load := sgpu.Load(free[:1]); load != (60+25)/2 {
		t.Errorf("load %d", load)
	}
	if got, why := w.Place(free, config.PlacementBinpack); got != nil || !strings.Contains(why, "lost") {
		t.Errorf("a second one has %v: %q", got, why)
	}
}

func sharer(name string, vcore, gib int64) corev1.Container {
	c := pod(name, vcore, nil).Spec.Containers[0]
	c.Name = name
	c.Resources.Limits["nvidia.com/vmemory"] = *resource.NewQuantity(gib, resource.DecimalSI)
	return c
}

func sidecar(c corev1.Container) corev1.Container {
	c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	return c
}

// TestTurns: a pod takes the most that any of its turns takes, while it is
// placed and once it is there; deviceplugin/binder has the same cases.
func TestTurns(t *testing.T) {
	type list = []corev1.Container
	for _, tt := range []struct {
		name       string
		init, apps list
		takes      quota.Load
		exclusive  bool
		none       bool // it does not fit at all
	}{
		{name: "an init container and one app", init: list{sharer("i", 30, 1)}, apps: list{sharer("a", 60, 1)}, takes: quota.Load{VCore: 60, Consumers: 1, MemoryMiB: 1 << 10}},
		{name: "a larger init container", init: list{sharer("i", 70, 1)}, apps: list{sharer("a", 60, 2)}, takes: quota.Load{VCore: 70, Consumers: 1, MemoryMiB: 2 << 10}},
		{
			name: "init containers run one by one", init: list{sharer("i", 70, 1), sharer("j", 80, 1)},
			apps: list{sharer("a", 40, 1), sharer("b", 40, 1)}, takes: quota.Load{VCore: 80, Consumers: 2, MemoryMiB: 2 << 10},
		},
		{
			name: "a sidecar runs beside what comes after it",
			init: list{sharer("i", 80, 1), sidecar(sharer("s", 20, 1)), sharer("j", 70, 1)},
			apps: list{sharer("a", 60, 1)}, takes: quota.Load{VCore: 90, Consumers: 2, MemoryMiB: 2 << 10},
		},
		{name: "alone in its turn", init: list{sharer("i", 100, 1)}, apps: list{sharer("a", 100, 1)}, takes: quota.Load{VCore: 100, Consumers: 1, MemoryMiB: 1 << 10}, exclusive: true},
		{name: "too much beside its sidecar", init: list{sidecar(sharer("s", 50, 1))}, apps: list{sharer("a", 60, 1)}, none: true},
		{name: "memory too", init: list{sharer("i", 1, 14)}, apps: list{sharer("a", 1, 8)}, takes: quota.Load{VCore: 1, Consumers: 1, MemoryMiB: 14 << 10}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := config.Default()
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p"}, Spec: corev1.PodSpec{InitContainers: tt.init, Containers: tt.apps}}
			w, err := sgpu.Read(p, &c)
			if err != nil {
				t.Fatal(err)
			}
			b := sgpu.Book{Config: &c}
			nobody := func(types.UID) *allocation.Allocation { return nil }
			free, err := b.Free(node(0), nil, nobody)
			if err != nil {
				t.Fatal(err)
			}
			got, why := w.Place(free, config.PlacementBinpack)
			if (why != "") != tt.none || len(got) != len(tt.init)+len(tt.apps) && !tt.none {
				t.Fatalf("placed %v: %q", got, why)
			}
			want := quota.GPU{
				UUID: "GPU-a", MemoryMiB: 16 << 10, Slots: 4, NUMA: -1, Exclusive: tt.exclusive,
				VCore: tt.takes.VCore, UsedMiB: tt.takes.MemoryMiB, Consumers: tt.takes.Consumers,
			}
			if !tt.none && !tt.exclusive {
				want.Policy = quota.FixedShare
			}
			if diff := cmp.Diff(want, free[0]); diff != "" {
				t.Errorf("card once placed (-want +got):\n%s", diff)
			}
			if tt.none {
				return
			}
			decided := &allocation.Allocation{Version: allocation.Version, Node: "n", Containers: got}
			there, err := b.Free(node(0), []*corev1.Pod{p}, func(types.UID) *allocation.Allocation { return decided })
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, there[0]); diff != "" {
				t.Errorf("card with the pod on the node (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadAndBroken(t *testing.T) {
	c := config.Default()
	plain := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	if _, err := sgpu.Read(plain, &c); !errors.Is(err, quota.ErrNoShare) {
		t.Errorf("a pod without shares: %v", err)
	}
	if _, err := sgpu.Read(pod("p", 160, nil), &c); err == nil || !strings.Contains(err.Error(), "container c: ") {
		t.Errorf("160 percent: %v", err)
	}
	b := sgpu.Book{Config: &c}
	for _, text := range []string{"", "{", `{"version":2,"cards":[]}`} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{wellknown.SGPUCards: text}}}
		if got, err := b.Free(n, nil, nil); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}
