//go:build e2e && linux

package e2e

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/cluster"
)

const (
	gpusOfNode = 8
	gpuMiB     = 80 << 10
	gpuSlots   = 16
)

func gpuUUID(node string, gpuAt int) string { return fmt.Sprintf("GPU-%s-%d", node, gpuAt) }

// sharing is a node of eight cards that heddle-device-plugin has published.
func sharing(name string) cluster.SimulatedNode {
	all := allocation.NodeGPUs{Version: allocation.Version}
	for i := range gpusOfNode {
		all.GPUs = append(all.GPUs, allocation.GPU{
			UUID: gpuUUID(name, i), Index: i, MemoryMiB: gpuMiB, Slots: gpuSlots, Zone: 1, Healthy: true,
		})
	}
	return cluster.SimulatedNode{
		Name: name, Annotations: map[string]string{wellknown.SharedGPUs: all.String()},
		Capacity: map[string]string{
			"nvidia.com/sgpu": fmt.Sprint(gpusOfNode * gpuSlots), "nvidia.com/vcore": fmt.Sprint(gpusOfNode * 100),
			"nvidia.com/vmemory": fmt.Sprint(gpusOfNode * gpuMiB >> 10),
		},
	}
}

// share is a pod that asks for a part of a card.
func (f *fleet) share(name string, vcore, vmemory int64) *corev1.Pod {
	p := f.pod(name, 0, nil)
	p.Spec.SchedulerName = schedulerName
	limits := p.Spec.Containers[0].Resources.Limits
	limits[corev1.ResourceCPU] = resource.MustParse("100m")
	for name, n := range map[corev1.ResourceName]int64{"nvidia.com/sgpu": 1, "nvidia.com/vcore": vcore, "nvidia.com/vmemory": vmemory} {
		limits[name] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return p
}

// TestThousandSharedPods gives 1,000 pods a share each of the 400 cards of 50
// nodes, of which 1,200 have room: all get one, of a card of their node, and no
// GPU has more consumers than slots.
func TestThousandSharedPods(t *testing.T) {
	const nodes, pods = 50, 1000
	f := idleFleet(t, shared)
	f.start(t)
	var all []cluster.SimulatedNode
	for i := range nodes {
		all = append(all, sharing(fmt.Sprintf("share-%02d", i)))
	}
	f.nodes(t, all...)
	f.leader(t)
	config := rest.CopyConfig(f.bed.config)
	config.QPS, config.Burst, config.ContentType = 2000, 2000, "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	api := client.CoreV1().Pods(f.namespace)
	start := time.Now()
	var group errgroup.Group
	group.SetLimit(16)
	for i := range pods {
		group.Go(func() error {
			// Three to a card, by compute or by memory; a fourth has no room.
			vcore, vmemory := int64(33), int64(10)
			if i%2 == 1 {
				vcore, vmemory = 10, 26
			}
			_, err := api.Create(t.Context(), f.share(fmt.Sprintf("share-%04d", i), vcore, vmemory), metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	made := time.Since(start)
	eventually(t, time.Minute, func() string {
		<-time.After(100 * time.Millisecond) // The API server has better things to do.
		list, err := api.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=", ResourceVersion: "0"})
		if err != nil {
			return err.Error()
		}
		if n := len(list.Items); n > 0 {
			return fmt.Sprintf("%d have no node; %s: %s", n, list.Items[0].Name, whyNot(&list.Items[0]))
		}
		return ""
	})
	took := time.Since(start)
	process := f.process
	f.kill(t)
	t.Logf("%d pods made in %.1f s, bound in %.1f s: %.0f pods/s, of which the scheduler computed %.1f s", pods,
		made.Seconds(), took.Seconds(), pods/took.Seconds(), process.ProcessState.UserTime().Seconds())
	list, err := api.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != pods {
		t.Errorf("%d pods", len(list.Items))
	}
	checkGPUs(t, list.Items)
}

// checkCards adds up what the pods' annotations contain for each GPU.
func checkGPUs(t *testing.T, pods []corev1.Pod) {
	t.Helper()
	taken := map[string]allocation.Taken{}
	for i := range pods {
		p := &pods[i]
		a, err := allocation.ParseAllocation(p.Annotations[wellknown.SGPUAllocation])
		if err != nil || a.Node != p.Spec.NodeName || len(a.Containers["main"]) != 1 {
			t.Fatalf("%s on %s has %q (%v)", p.Name, p.Spec.NodeName, p.Annotations[wellknown.SGPUAllocation], err)
		}
		got, limits := a.Containers["main"][0], p.Spec.Containers[0].Resources.Limits
		vcore, vmemory := limits["nvidia.com/vcore"], limits["nvidia.com/vmemory"]
		if int64(got.VCore) != vcore.Value() || got.MemoryMiB != vmemory.Value()<<10 {
			t.Errorf("%s asks for %s and %s, and gets %+v", p.Name, vcore.String(), vmemory.String(), got)
		}
		known := false
		for gpuAt := range gpusOfNode {
			known = known || got.UUID == gpuUUID(p.Spec.NodeName, gpuAt)
		}
		if !known {
			t.Errorf("%s has card %s, which is not of %s", p.Name, got.UUID, p.Spec.NodeName)
		}
		now := taken[got.UUID]
		taken[got.UUID] = allocation.Taken{VCore: now.VCore + got.VCore, MemoryMiB: now.MemoryMiB + got.MemoryMiB, Slots: now.Slots + 1}
	}
	for gpuAt, sum := range taken {
		if sum.VCore > 100 || sum.MemoryMiB > gpuMiB || sum.Slots > gpuSlots {
			t.Errorf("card %s has %+v", gpuAt, sum)
		}
	}
	t.Logf("%d cards in use", len(taken))
}
