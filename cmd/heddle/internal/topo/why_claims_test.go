package topo

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/claims/pool"
	"github.com/heddle-dev/heddle/test/golden"
	"github.com/heddle-dev/heddle/test/inventorytest"
	"github.com/heddle-dev/heddle/test/machines"
	"github.com/heddle-dev/heddle/topo/explain"
)

// newClaimCluster makes two leaf groups of four nodes. Three nodes, a0, a1 and b0, have GPUs for claims.
func newClaimCluster(t *testing.T) *whyCluster {
	t.Helper()
	w := newWhyCluster(4, 4)
	for class, device := range map[string]claims.Type{
		claims.ClassGPU: claims.GPU, claims.ClassPair: claims.Pair, "sgpu.heddle.dev": claims.GPU,
	} {
		c := resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}}
		c.Spec.Selectors = expressions(fmt.Sprintf(
			"device.driver == '%s' && device.attributes['%[1]s'].type == '%s'", claims.Driver, device))
		w.Classes = append(w.Classes, c)
	}
	c := config.Default()
	c.Mode = config.ModeClaims
	published := pool.Of(inventorytest.Configured(machines.Load(t, "dgx-h100"), &c)).Slices()
	for i := range w.Nodes {
		name := w.Nodes[i].Name
		if name != "a0" && name != "a1" && name != "b0" {
			continue
		}
		delete(w.Nodes[i].Status.Allocatable, "nvidia.com/gpu")
		for _, s := range published {
			w.Slices = append(w.Slices, resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
				Driver: claims.Driver, NodeName: &name, Devices: s.Devices, SharedCounters: s.SharedCounters,
				Pool: resourceapi.ResourcePool{Name: name, ResourceSliceCount: int64(len(published))},
			}})
		}
	}
	return w
}

func expressions(all ...string) (out []resourceapi.DeviceSelector) {
	for _, e := range all {
		out = append(out, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	return out
}

// claim adds pods with a claim of their own. Those with a node hold the first devices of the class there.
func (w *whyCluster) claim(name string, n int, node string, one resourceapi.ExactDeviceRequest) {
	one.AllocationMode = resourceapi.DeviceAllocationModeExactCount
	w.add(name, n, 0, func(p *corev1.Pod) {
		p.Spec.NodeName = node
		delete(p.Spec.Containers[0].Resources.Requests, "nvidia.com/gpu")
		claim := resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ai", Name: p.Name + "-devices", UID: types.UID(p.Name + "-devices"),
		}}
		claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &one}}
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "devices", ResourceClaimTemplateName: &name}}
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "devices", ResourceClaimName: &claim.Name}}
		if node != "" {
			claim.Status.Allocation = &resourceapi.AllocationResult{}
			for _, s := range w.Slices {
				for _, d := range s.Spec.Devices {
					if results := &claim.Status.Allocation.Devices.Results; *s.Spec.NodeName == node && len(*results) < int(one.Count) &&
						strings.HasPrefix(d.Name, string(claims.GPU)+"-") {
						*results = append(*results, resourceapi.DeviceRequestAllocationResult{
							Request: "gpu", Driver: claims.Driver, Pool: node, Device: d.Name,
						})
					}
				}
			}
		}
		w.Claims = append(w.Claims, claim)
	})
}

// TestWhyOfClaims compares the words with testdata/why-claims.txt.
func TestWhyOfClaims(t *testing.T) {
	gpus := func(class string, n int64, selectors ...string) resourceapi.ExactDeviceRequest {
		return resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: n, Selectors: expressions(selectors...)}
	}
	share := gpus("sgpu.heddle.dev", 1)
	share.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
		claims.CapacityVCore: resource.MustParse("30"), claims.CapacityVMemory: resource.MustParse("90Gi"),
	}}
	var got strings.Builder
	for _, tt := range []struct {
		title, name string
		pods        func(*whyCluster)
	}{
		{"a gang with room for two", "train", func(w *whyCluster) {
			w.claim("single-holder", 1, "a0", gpus(claims.ClassGPU, 3))
			w.claim("train", 3, "", gpus(claims.ClassPair, 8))
		}},
		{"a gang that fits", "train", func(w *whyCluster) { w.claim("train", 6, "", gpus(claims.ClassPair, 4)) }},
		{"a selector", "single-0", func(w *whyCluster) {
			w.claim("single", 1, "", gpus(claims.ClassGPU, 1, fmt.Sprintf("device.attributes['%s'].architecture == 'Blackwell'", claims.Driver)))
		}},
		{"more memory than any GPU has", "single-0", func(w *whyCluster) { w.claim("single", 1, "", share) }},
		{"a class that does not exist", "single-0", func(w *whyCluster) { w.claim("single", 1, "", gpus("nothing", 1)) }},
		{"no right to read claims", "single-0", func(w *whyCluster) {
			w.claim("single", 1, "", gpus(claims.ClassGPU, 1))
			w.Classes, w.Slices, w.Claims = nil, nil, nil
		}},
	} {
		w := newClaimCluster(t)
		tt.pods(w)
		answer, err := explain.Of(t.Context(), &w.Cluster, "ai", tt.name, whyNow())
		if err != nil {
			t.Fatalf("%s: %v", tt.title, err)
		}
		fmt.Fprintf(&got, "# %s\n%s\n", tt.title, whyText(answer, true, whyNow()))
	}
	golden.Compare(t, "testdata/why-claims.txt", got.String(), *update)
}
