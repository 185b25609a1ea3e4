//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/cluster"
)

// The fleet of shares: its nodes, the GPUs of each, the pods that come at once,
// and the turns of each scheduler.
const (
	shareNodes  = 50
	sharedGPUs  = 8
	shareCount  = 600
	shareRounds = 5
)

// sgpuScheduler lets heddle-scheduler and the same program without the plugin,
// which is kube-scheduler, bind the same pods, in turns: one chooses a GPU for
// each, the other counts their resources by node.
func sgpuScheduler(ctx context.Context, log io.Writer) (rows []row, err error) {
	r, err := newRace(ctx, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	if err := r.fillShares(ctx); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(r.installer.Root, "cmd/heddle-scheduler/testdata/scheduler.yaml"))
	if err != nil {
		return nil, err
	}
	sharing, err := r.contender(schedulerBinary, string(text), nil)
	if err != nil {
		return nil, err
	}
	plain, err := r.contender("plain", string(text), map[string]any{})
	if err != nil {
		return nil, err
	}
	var shares, ratios []float64
	for range shareRounds {
		first, bound, err := r.round(ctx, sharing, sharePods())
		if err = errors.Join(err, checkShares(bound)); err != nil {
			return nil, err
		}
		second, _, err := r.round(ctx, plain, sharePods())
		if err != nil {
			return nil, err
		}
		shares, ratios = append(shares, first), append(ratios, first/second)
	}
	how := fmt.Sprintf("%d nodes, real API server, median of %d rounds of %d pods", shareNodes, shareRounds, shareCount)
	return []row{
		atLeast("pods with shares of GPUs, to kube-scheduler without GPU", median(ratios), 0.9, "x", how),
		atLeast("the same, pods a second", median(shares), 20, "", how),
	}, nil
}

func median(all []float64) float64 { return slices.Sorted(slices.Values(all))[len(all)/2] }

// fillShares adds nodes with GPUs that are shared.
func (r *race) fillShares(ctx context.Context) error {
	for n := range shareNodes {
		name := fmt.Sprintf("GPU-%02d", n)
		all := allocation.NodeGPUs{Version: allocation.Version}
		for index := range sharedGPUs {
			all.GPUs = append(all.GPUs, allocation.GPU{
				UUID: fmt.Sprintf("GPU-%08d-0000-4000-8000-%012d", n, index), Index: index,
				MemoryMiB: 80 << 10, Slots: 16, Healthy: true,
			})
		}
		d := wellknown.DefaultDomains()
		if err := r.cluster.AddSimulatedNode(ctx, cluster.SimulatedNode{
			Name: name, Annotations: map[string]string{wellknown.SharedGPUs: all.String()},
			Capacity: map[string]string{
				d.SGPUResource():    strconv.Itoa(16 * sharedGPUs),
				d.VCoreResource():   strconv.Itoa(100 * sharedGPUs),
				d.VMemoryResource(): strconv.Itoa(80 * sharedGPUs),
			},
		}); err != nil {
			return err
		}
	}
	return r.ready(ctx)
}

// sharePods ask for a tenth of a GPU each, which plain kube-scheduler takes for
// three numbers of the node.
func sharePods() []*corev1.Pod {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	d := wellknown.DefaultDomains()
	for name, n := range map[string]int64{d.SGPUResource(): 1, d.VCoreResource(): 10, d.VMemoryResource(): 4} {
		list[corev1.ResourceName(name)] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	pods := make([]*corev1.Pod, shareCount)
	for i := range pods {
		pods[i] = racePod(fmt.Sprintf("share-%03d", i), nil, list)
	}
	return pods
}

func racePod(name string, labels map[string]string, limits corev1.ResourceList) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "busybox:1.37", Resources: corev1.ResourceRequirements{Limits: limits},
		}}},
	}
}

// checkShares makes sure that what was measured is what was asked for: every pod
// has a GPU, and no GPU more than it has.
func checkShares(pods map[string]*corev1.Pod) error {
	used := map[string]int{}
	for name, pod := range pods {
		got, err := allocation.ParseAllocation(pod.Annotations[wellknown.SGPUAllocation])
		if err != nil || got.Node != pod.Spec.NodeName || len(got.Containers["main"]) != 1 {
			return fmt.Errorf("pod %s has no GPU: %q: %w", name, pod.Annotations[wellknown.SGPUAllocation], err)
		}
		share := got.Containers["main"][0]
		if used[share.UUID] += share.VCore; used[share.UUID] > 100 {
			return fmt.Errorf("GPU %s is allocated twice", share.UUID)
		}
	}
	return nil
}
