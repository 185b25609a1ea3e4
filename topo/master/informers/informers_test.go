package informers

import (
	"math/rand/v2"
	"testing"
	"time"
	"unique"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helper "k8s.io/component-helpers/resource"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/suspect"
)

func TestReportOwner(t *testing.T) {
	ref := func(apiVersion, kind, name string) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: "u"}
	}
	for _, tt := range []struct {
		name string
		refs []metav1.OwnerReference
		want string
	}{
		{"its Node", []metav1.OwnerReference{ref("v1", "Node", "n1")}, "u"},
		{"none", nil, ""},
		{"another Node", []metav1.OwnerReference{ref("v1", "Node", "n2")}, ""},
		{"another kind", []metav1.OwnerReference{ref("v1", "Pod", "n1")}, ""},
		{"another group's Node", []metav1.OwnerReference{ref("x/v1", "Node", "n1")}, ""},
		{"a pod and its Node", []metav1.OwnerReference{ref("v1", "Pod", "p"), ref("v1", "Node", "n1")}, "u"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := readReport(&v1alpha1.NodeTopology{ObjectMeta: metav1.ObjectMeta{Name: "n1", OwnerReferences: tt.refs}})
			if string(r.Owner) != tt.want {
				t.Errorf("owner %q, want %q", r.Owner, tt.want)
			}
		})
	}
}

func TestReportKeepsOldSpec(t *testing.T) {
	reading := func(change func(*v1alpha1.NodeTopology)) *Report {
		nt := &v1alpha1.NodeTopology{ObjectMeta: metav1.ObjectMeta{
			Name: "n1", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "o"}},
		}}
		change(nt)
		return readReport(nt)
	}
	beat := time.Unix(1_700_000_000, 0).UTC()
	for _, tt := range []struct {
		name   string
		change func(*v1alpha1.NodeTopology)
		want   bool
	}{
		{"a heartbeat", func(*v1alpha1.NodeTopology) {}, true},
		{"another spec", func(nt *v1alpha1.NodeTopology) { nt.Spec.NVLinkDomain = "a.1" }, false},
		{"another object of the same content", func(nt *v1alpha1.NodeTopology) { nt.UID = "v" }, true},
		{"another owner", func(nt *v1alpha1.NodeTopology) { nt.OwnerReferences[0].UID = "p" }, false},
		{"another walk", func(nt *v1alpha1.NodeTopology) { nt.Status.Walk = []string{"a"} }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old := reading(func(*v1alpha1.NodeTopology) {})
			now := reading(func(nt *v1alpha1.NodeTopology) {
				nt.Status.HeartbeatTime = new(metav1.NewTime(beat))
				tt.change(nt)
			})
			kept := now.keep(old)
			if (kept == old) != tt.want || !kept.Heartbeat().Equal(beat) {
				t.Errorf("kept the old one: %t, heartbeat %s", kept == old, kept.Heartbeat())
			}
		})
	}
}

// A report without a heartbeat is as old as its object.
func TestCreationIsAHeartbeat(t *testing.T) {
	made := time.Unix(1_700_000_000, 0).UTC()
	nt := &v1alpha1.NodeTopology{ObjectMeta: metav1.ObjectMeta{Name: "n1", CreationTimestamp: metav1.NewTime(made)}}
	if got := readReport(nt).Heartbeat(); !got.Equal(made) {
		t.Errorf("heartbeat %s", got)
	}
}

func TestNode(t *testing.T) {
	fields := func(manager, text string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(text),
		}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", UID: "u",
		Labels: map[string]string{"heddle.dev/topology.leaf": "leaf-1", "heddle.dev/topology.spine": "spine-1", "old": "owned", "foreign": "x"},
		ManagedFields: []metav1.ManagedFieldsEntry{
			fields("another", `{"f:metadata":{"f:labels":{"f:heddle.dev/topology.spine":{},"f:foreign":{}}}}`),
			fields("heddle", `{"f:metadata":{"f:labels":{"f:heddle.dev/topology.leaf":{},"f:old":{}}}}`),
			fields("heddle", `{"f:metadata":`),
		},
	}}
	node.Spec.Unschedulable = true
	node.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue},
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(5, 0)},
		{Type: wellknown.ConditionFabric, Status: corev1.ConditionFalse, Reason: "LinkDown", Message: "rail 3"},
	}
	node.Status.Allocatable = corev1.ResourceList{
		"nvidia.com/gpu": resource.MustParse("8"), "amd.com/gpu": resource.MustParse("1"), "example.com/gpu": resource.MustParse("4"),
	}
	r := nodeReader{suspects: suspect.NewMemory(), gpus: gpuResources{"nvidia.com/gpu", "amd.com/gpu", "metax-tech.com/gpu"}, manager: "heddle"}
	want := &Node{Name: "n1", UID: "u", Ready: true, Since: time.Unix(5, 0), GPUs: 9, Cordoned: true}
	want.Fabric = unique.Make(Condition{Status: "False", Reason: "LinkDown", Message: "rail 3"})
	for _, l := range []Label{{"heddle.dev/topology.leaf", "leaf-1", true}, {"heddle.dev/topology.spine", "spine-1", false}, {"old", "owned", true}} {
		want.Labels = append(want.Labels, unique.Make(l))
	}
	labels := cmp.Comparer(func(a, b unique.Handle[Label]) bool { return a == b })
	conditions := cmp.Comparer(func(a, b unique.Handle[Condition]) bool { return a == b })
	if diff := cmp.Diff(want, r.read(node), labels, conditions); diff != "" {
		t.Errorf("node (-want +got):\n%s", diff)
	}
}

// However many GPUs a pod asks for, the sum is bounded.
func TestPodGPUs(t *testing.T) {
	var spec corev1.PodSpec
	for _, n := range []string{"-1", "9999999999999"} {
		spec.Containers = append(spec.Containers, corev1.Container{Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(n)},
		}})
	}
	r := podReader{gpuResources{"amd.com/gpu", "nvidia.com/gpu"}, suspect.NewMemory()}
	if got := r.gpus(&spec); got != maxCount {
		t.Errorf("%d GPUs, want %d", got, maxCount)
	}
}

// Of pods that hold no GPU and are in no gang nothing is kept.
func TestPodKeeps(t *testing.T) {
	type labels = map[string]string
	pod := func(node string, phase corev1.PodPhase, gpus string, l labels) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: l}}
		p.Spec.NodeName, p.Status.Phase = node, phase
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(gpus)},
		}}}
		return p
	}
	tf := labels{"pod-group.scheduling.sigs.k8s.io/name": "tf"}
	type kept struct {
		Node, Gang      string
		Holds, Requests int32
	}
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		want *kept
	}{
		{"one that runs", pod("n1", corev1.PodRunning, "2", nil), &kept{Node: "n1", Holds: 2}},
		{"one that waits", pod("", corev1.PodPending, "2", nil), &kept{}},
		{"one that ended", pod("n1", corev1.PodSucceeded, "2", nil), &kept{}},
		{"one without GPUs", pod("n1", corev1.PodRunning, "0", nil), nil},
		{"a gang's that runs", pod("n1", corev1.PodRunning, "2", tf), &kept{Node: "n1", Gang: "ns/tf", Holds: 2, Requests: 2}},
		{"a gang's that waits", pod("", corev1.PodPending, "2", tf), &kept{Gang: "ns/tf", Requests: 2}},
		{"a gang's that ended", pod("n1", corev1.PodFailed, "2", tf), &kept{Gang: "ns/tf", Requests: 2}},
		{"a gang's without GPUs", pod("n1", corev1.PodRunning, "0", tf), &kept{Gang: "ns/tf"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := podReader{gpuResources{"amd.com/gpu", "nvidia.com/gpu"}, suspect.NewMemory()}
			var got *kept
			if r.wants(tt.pod) {
				p := r.read(tt.pod)
				got = &kept{Node: p.Node, Holds: p.GPUs}
				if p.Member != nil {
					got.Gang, got.Requests = p.Member.Gang, p.Member.GPUs
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("kept (-want +got):\n%s", diff)
			}
		})
	}
}

// TestGPUsAsTheKubeletCounts: what is held for a pod is what the scheduler and
// the kubelet count for it.
func TestGPUsAsTheKubeletCounts(t *testing.T) {
	const gpu = "nvidia.com/gpu"
	container := func(n int64, always bool) corev1.Container {
		q := corev1.ResourceList{gpu: *resource.NewQuantity(n, resource.DecimalSI)}
		c := corev1.Container{Resources: corev1.ResourceRequirements{Limits: q, Requests: q}}
		if always {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		return c
	}
	random := rand.New(rand.NewPCG(1, 2))
	r := podReader{gpuResources{gpu}, suspect.NewMemory()}
	for range 500 {
		var spec corev1.PodSpec
		for range random.IntN(4) {
			spec.InitContainers = append(spec.InitContainers, container(random.Int64N(9), random.IntN(2) == 0))
		}
		for range 1 + random.IntN(2) {
			spec.Containers = append(spec.Containers, container(random.Int64N(9), false))
		}
		want := helper.PodRequests(&corev1.Pod{Spec: spec}, helper.PodResourcesOptions{})[gpu]
		if got := r.gpus(&spec); int64(got) != want.Value() {
			t.Fatalf("%d GPUs, the kubelet counts %d, of %v and %v", got, want.Value(), spec.InitContainers, spec.Containers)
		}
	}
}
