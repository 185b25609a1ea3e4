//go:build e2e && linux

package e2e

import (
	"context"
	"fmt"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/claims/pool"
	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/inventorytest"
	"github.com/heddle-dev/heddle/test/machines"
)

// claimable adds simulated nodes that offer no GPU to a kubelet and publish those of a DGX H100 for claims.
func (f *fleet) claimable(t *testing.T, names ...string) {
	t.Helper()
	c := config.Default()
	c.Mode = config.ModeClaims
	published := pool.Of(inventorytest.Configured(machines.Load(t, "dgx-h100"), &c)).Slices()
	api := f.client.ResourceV1().ResourceSlices()
	for _, name := range names {
		f.nodes(t, cluster.SimulatedNode{Name: name})
		for i, s := range published {
			slice := &resourcev1.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05d-%s", i, name)},
				Spec: resourcev1.ResourceSliceSpec{
					Driver: claims.Driver, NodeName: &name, Devices: s.Devices, SharedCounters: s.SharedCounters,
					Pool: resourcev1.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(published))},
				},
			}
			if _, err := api.Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = api.Delete(context.WithoutCancel(t.Context()), slice.Name, metav1.DeleteOptions{}) })
		}
	}
}

// A gang of manifests for device plugins gets GPUs by claims that the scheduler makes: all members or none, and those
// that wait go on once the claims of others are gone.
func TestGangOfClaims(t *testing.T) {
	f := newFleet(t)
	text := f.helm(t, "template", "x", "deploy/helm/heddle", "-n", f.namespace,
		"-s", "templates/device-plugin/claims.yaml", "--set", "gpuDevice.claims.enabled=true,admissionPolicy.enabled=false")
	if err := f.Apply(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	for _, class := range []string{"gpu", "gpu-hca", "hca", "mig", "sgpu"} {
		t.Cleanup(func() { f.kubectlAfter(t, "delete", "deviceclass", class+claims.ClassSuffix) })
	}
	f.claimable(t, "claims-1", "claims-2", "claims-3")
	for i := range 2 {
		f.create(t, f.member("first", i, 2, 8, nil))
	}
	f.running(t, "first", 2)
	for i := range 2 {
		f.create(t, f.member("second", i, 2, 8, nil))
	}
	f.later(t, "later")
	if on := f.bound(t, "second"); len(on) != 0 {
		t.Errorf("members without room for all are on %v", on)
	}
	f.kubectl(t, "delete", "pod", "-n", f.namespace, "first-0", "first-1")
	f.running(t, "second", 2)
	nodes := map[string]bool{}
	for _, node := range f.bound(t, "second") {
		nodes[node] = true
	}
	if len(nodes) != 2 {
		t.Errorf("two members with all GPUs of a node are on %v", nodes)
	}
}
