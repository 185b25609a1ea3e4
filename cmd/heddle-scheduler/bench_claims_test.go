package main

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/heddle-dev/heddle/api/claims"
)

// claimGroups groups of benchSize nodes are 522 nodes, claimGangs gangs half of what there is room for.
const claimGroups, claimGangs = 29, 14

// claimable adds the GPUs of each node, for claims.
func (x *bench) claimable(w *cluster) {
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: claims.ClassPair}}
	class.Spec.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf(
		"device.driver == '%s' && device.attributes['%[1]s'].type == '%s'", claims.Driver, claims.Pair)}}}
	w.add(class)
	for _, node := range x.nodes {
		for i, spec := range publishedDevices() {
			spec.Driver, spec.NodeName = claims.Driver, &node.Name
			spec.Pool = resourcev1.ResourcePool{Name: node.Name, Generation: 1, ResourceSliceCount: 3}
			w.add(&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", node.Name, i)}, Spec: spec})
		}
	}
}

// publishedDevices are eight GPUs, eight HCAs and the eight pairs of them, in the form in which heddle's driver publishes them:
// the counters of eight devices fill a slice.
func publishedDevices() []resourcev1.ResourceSliceSpec {
	out := make([]resourcev1.ResourceSliceSpec, 3)
	one := map[string]resourcev1.Counter{"use": {Value: resource.MustParse("1")}}
	for i := range 8 {
		gpu, hca := fmt.Sprint("gpu-", i), fmt.Sprint("hca-", i)
		for name, sets := range map[string][]string{gpu: {gpu}, hca: {hca}, fmt.Sprint("pair-", i): {gpu, hca}} {
			kind, _, _ := strings.Cut(name, "-")
			d := resourcev1.Device{Name: name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				claims.AttributeType: {StringValue: &kind}, claims.AttributeUUID: {StringValue: &gpu},
			}}
			for _, set := range sets {
				d.ConsumesCounters = append(d.ConsumesCounters, resourcev1.DeviceCounterConsumption{CounterSet: set, Counters: one})
			}
			out[0].Devices = append(out[0].Devices, d)
		}
		out[1].SharedCounters = append(out[1].SharedCounters, resourcev1.CounterSet{Name: gpu, Counters: one})
		out[2].SharedCounters = append(out[2].SharedCounters, resourcev1.CounterSet{Name: hca, Counters: one})
	}
	return out
}

// claimant adds a pod with a claim of its own for pairs.
func claimant(w *cluster, name string, gpus int, labels map[string]string) {
	p := pod(name, 0, labels)
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: uuid.NewUUID()}}
	claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "pairs", Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: claims.ClassPair, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: int64(gpus),
	}}}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "pairs", ResourceClaimName: &claim.Name}}
	w.add(claim)
	w.add(p)
}

// BenchmarkClaimGangs is gangs of 18 that fill a group each by claims for pairs, to kube-scheduler that knows neither gangs
// nor groups and has the same claims.
func BenchmarkClaimGangs(b *testing.B) {
	x := newBenchOf(b, claimGroups)
	x.gangs, x.make = claimGangs, claimant
	for i := range x.contenders {
		before := x.contenders[i].start
		x.contenders[i].start = func() *cluster {
			w := before()
			x.claimable(w)
			return w
		}
	}
	x.run(8, func(gang int) map[string]string { return gangLabels(fmt.Sprintf("g%d", gang), benchSize) })
}
