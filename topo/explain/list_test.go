package explain

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/simulation/apiserver"
	"github.com/heddle-dev/heddle/topo/master/informers"
)

const gpu = "nvidia.com/gpu"

// rig is a lister on an API server with two nodes of 8 GPUs, of which one runs a pod.
func rig(t *testing.T) (*Lister, *apiserver.Server, *clocktesting.FakePassiveClock) {
	t.Helper()
	api := apiserver.New(
		apiserver.Kind{APIVersion: "policy/v1", Name: "PodDisruptionBudget", Plural: "poddisruptionbudgets"},
		apiserver.Kind{APIVersion: "resource.k8s.io/v1", Name: "DeviceClass", Plural: "deviceclasses"},
		apiserver.Kind{APIVersion: "resource.k8s.io/v1", Name: "ResourceSlice", Plural: "resourceslices"},
		apiserver.Kind{APIVersion: "resource.k8s.io/v1", Name: "ResourceClaim", Plural: "resourceclaims"},
	)
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	core, err := informers.CoreClient(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n0", "n1"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		node.Status.Allocatable = corev1.ResourceList{
			gpu: resource.MustParse("8"), corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceCPU: resource.MustParse("64"),
		}
		api.Put("nodes", node)
	}
	api.Put("pods", podOf("busy", "n0"))
	clock := clocktesting.NewFakePassiveClock(time.Now())
	return NewLister(core, 5000, 50000, clock), api, clock
}

func podOf(name, node string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ai", Name: name, UID: types.UID("uid-" + name)}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{
		Name: "train", Env: []corev1.EnvVar{{Name: "SECRET", Value: "x"}},
		Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{gpu: resource.MustParse("8")}, Requests: corev1.ResourceList{gpu: resource.MustParse("8")},
		},
	}}
	return p
}

// groups are a leaf of both nodes.
func groups() []v1alpha1.Group {
	leaf := v1alpha1.Group{Name: "leaf-0", Kind: "leaf", Status: v1alpha1.StatusReady}
	for _, name := range []string{"n0", "n1"} {
		leaf.Child = append(leaf.Child, v1alpha1.Group{Name: name, Kind: v1alpha1.KindNode, Status: v1alpha1.StatusReady})
	}
	return []v1alpha1.Group{leaf}
}

// The answer is that of heddle why on the same cluster.
func TestExplain(t *testing.T) {
	l, api, _ := rig(t)
	for i := range 2 {
		p := podOf(fmt.Sprint("train-", i), "")
		p.Labels = map[string]string{
			"pod-group.scheduling.sigs.k8s.io/name": "train", "pod-group.scheduling.sigs.k8s.io/min-available": "2",
		}
		api.Put("pods", p)
	}
	a, err := l.Explain(t.Context(), groups(), "ai", "train")
	if err != nil {
		t.Fatal(err)
	}
	got := []any{a.Gang, a.Pods, a.MinMember, a.Nodes, a.Groups[0].Name, a.Groups[0].Fit, a.Groups[0].Holders[0].Name, a.Fits}
	want := []any{
		true, 2, 2,
		[]Reason{{Reason: gpu + ": 0 of 8 free, asked for 8", Nodes: []string{"n0"}}},
		"leaf-0", 1, "ai/busy",
		[]string{"1 pod, on node n1"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := l.Explain(t.Context(), groups(), "ai", "none"); !errors.Is(err, ErrUnknown) {
		t.Errorf("no such gang: %v", err)
	}
}

// Claims count by what the API server has of them; where that cannot be read, it is said.
func TestExplainClaims(t *testing.T) {
	l, api, clock := rig(t)
	request := resourceapi.DeviceRequest{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: "any", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 2,
	}}
	claim := func(name string, results ...resourceapi.DeviceRequestAllocationResult) {
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ai", Name: name, UID: types.UID(name)}}
		c.Spec.Devices.Requests = []resourceapi.DeviceRequest{request}
		if results != nil {
			c.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results}}
		}
		api.Put("resourceclaims", c)
	}
	p := podOf("claims", "")
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: new("mine")}}
	api.Put("pods", p)
	reasons := func() []Reason {
		t.Helper()
		clock.SetTime(clock.Now().Add(freshFor + time.Second))
		a, err := l.Explain(t.Context(), nil, "ai", "claims")
		if err != nil {
			t.Fatal(err)
		}
		return a.Nodes
	}
	want := []Reason{{Reason: "its claims are not counted: no DeviceClass can be read", Nodes: []string{"n0", "n1"}}}
	if diff := cmp.Diff(want, reasons()); diff != "" {
		t.Errorf("without classes (-want +got):\n%s", diff)
	}
	api.Put("deviceclasses", &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "any"}})
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}
	slice.Spec = resourceapi.ResourceSliceSpec{
		Driver: "d", NodeName: new("n0"), Pool: resourceapi.ResourcePool{Name: "n0", ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{Name: "x"}, {Name: "y"}},
	}
	api.Put("resourceslices", slice)
	claim("mine")
	claim("other", resourceapi.DeviceRequestAllocationResult{Driver: "d", Pool: "n0", Device: "x"})
	want = []Reason{
		{Reason: `claim "devices", request "gpus": 1 of 2 devices free, 2 requested`, Nodes: []string{"n0"}},
		{Reason: "no devices for claims", Nodes: []string{"n1"}},
	}
	if diff := cmp.Diff(want, reasons()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What was listed answers for a moment, and no longer.
func TestListsOnceForManyQuestions(t *testing.T) {
	l, api, clock := rig(t)
	ask := func() int {
		if _, err := l.Explain(t.Context(), nil, "ai", "busy"); err != nil {
			t.Error(err)
		}
		return api.Requests("GET", "pods")
	}
	first := ask()
	for _, p := range l.known.Pods {
		if c := p.Spec.Containers[0]; len(c.Env) > 0 || c.Resources.Limits.Name(gpu, resource.DecimalSI).Value() != 8 {
			t.Errorf("kept: %+v", c)
		}
	}
	if again := ask(); again != first {
		t.Errorf("%d lists of pods for one question and %d for two", first, again)
	}
	clock.SetTime(clock.Now().Add(freshFor + time.Second))
	if later := ask(); later == first {
		t.Error("the pods of before are used")
	}
}

func TestTooLarge(t *testing.T) {
	l, api, _ := rig(t)
	for i := range 5000 {
		api.Put("nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("more-", i)}})
	}
	if _, err := l.Explain(t.Context(), nil, "ai", "busy"); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
}
