package plugin

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-scheduler/framework"

	api "github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/topo/scheduler/claims"
	"github.com/heddle-dev/heddle/topo/scheduler/planner"
)

type info struct {
	framework.NodeInfo
	name       string
	generation int64
	pods       int
}

func (i info) Node() *corev1.Node               { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: i.name}} }
func (i info) GetGeneration() int64             { return i.generation }
func (info) GetAllocatable() framework.Resource { return amounts{} }
func (info) GetRequested() framework.Resource   { return amounts{} }
func (i info) GetPods() (pods []framework.PodInfo) {
	for range i.pods {
		pods = append(pods, podInfo{})
	}
	return pods
}

type podInfo struct{ framework.PodInfo }

func (podInfo) GetPod() *corev1.Pod { return &corev1.Pod{} }

type amounts struct{}

func (amounts) GetMilliCPU() int64                                { return 0 }
func (amounts) GetMemory() int64                                  { return 0 }
func (amounts) GetEphemeralStorage() int64                        { return 0 }
func (amounts) GetAllowedPodNumber() int                          { return 0 }
func (amounts) GetScalarResources() map[corev1.ResourceName]int64 { return nil }
func (amounts) SetMaxResource(corev1.ResourceList)                {}

// The planner takes an equal pointer for an unchanged node.
func TestNodesAreNewWhenTheyChange(t *testing.T) {
	var n nodes
	none := claims.New(t.Context())
	first := slices.Clone(n.of([]framework.NodeInfo{info{name: "a", generation: 1}, info{name: "b", generation: 2}}, none))
	for _, tt := range []struct {
		what string
		info info
		same bool
	}{
		{"nothing changed", info{name: "b", generation: 2}, true},
		// The cycle of a PodGroup puts members on a node, and keeps the generation.
		{"a pod tried out", info{name: "b", generation: 2, pods: 1}, false},
		{"the pod gone again", info{name: "b", generation: 2}, false},
		{"another generation", info{name: "b", generation: 3}, false},
	} {
		now := n.of([]framework.NodeInfo{info{name: "a", generation: 1}, tt.info}, none)
		if now[0] != first[0] || (now[1] == first[1]) != tt.same || len(now[1].Pods) != tt.info.pods {
			t.Errorf("%s: the first node is the same: %v; the second: %v, with %d pods",
				tt.what, now[0] == first[0], now[1] == first[1], len(now[1].Pods))
		}
		first[1] = now[1]
	}
	if now := n.of([]framework.NodeInfo{info{name: "b", generation: 3}}, none); len(now) != 1 || now[0].Name != "b" {
		t.Errorf("%d nodes without the first", len(now))
	}
}

// A node whose pods get GPUs by claims has as many as claims can get, although it offers none.
func TestNodesOfClaims(t *testing.T) {
	var n nodes
	devices := claims.New(t.Context())
	const gpu = "nvidia.com/gpu"
	class := &resourceapi.DeviceClass{Spec: resourceapi.DeviceClassSpec{ExtendedResourceName: new(gpu)}}
	all := []framework.NodeInfo{info{name: "a", generation: 1}, info{name: "b", generation: 1}}
	var before []*planner.Node
	for _, free := range []int64{8, 0, 3} {
		for class, want := range map[*resourceapi.DeviceClass]int64{class: free, {}: 0} {
			devices.Update(claims.Cluster{
				Slices: []*resourceapi.ResourceSlice{gpuSlice("a", free)}, Classes: claims.Classes{api.ClassGPU: class},
			})
			now := slices.Clone(n.of(all, devices))
			if got := now[0].Allocatable[gpu]; got != want || now[1].Allocatable[gpu] != 0 || now[0].Claims == nil {
				t.Errorf("%d GPUs of node a, want %d; node b has %d", got, want, now[1].Allocatable[gpu])
			}
			if before != nil && (now[0] == before[0] || now[1] != before[1]) {
				t.Error("the devices of node a changed: it alone is new")
			}
			before = now
		}
	}
}

// gpuSlice publishes GPUs of a node.
func gpuSlice(node string, gpus int64) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{}
	s.Spec.Driver, s.Spec.NodeName = api.Driver, &node
	for i := range gpus {
		name := fmt.Sprint("gpu-", i)
		s.Spec.Devices = append(s.Spec.Devices, resourceapi.Device{
			Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				api.AttributeType: {StringValue: new(string(api.GPU))}, api.AttributeUUID: {StringValue: &name},
			},
		})
	}
	return s
}
