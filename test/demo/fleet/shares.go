package main

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// share is the request of a container for a part of one GPU.
type share struct {
	pod            string
	vcore, vmemory int64
}

// shares allocates parts of two GPUs of a node with the function of heddle-scheduler and heddle-device-plugin. The page
// shows the pods and the GPUs as the annotations have them that these write.
func (s *story) shares(context.Context) error {
	const memory = 81559 // MiB, of an H100.
	gpus := []quota.GPU{
		{UUID: "GPU-6172ab2d", Index: 6, MemoryMiB: memory, Slots: 16, Zone: 1},
		{UUID: "GPU-d1c0ffee", Index: 7, MemoryMiB: memory, Slots: 16, Zone: 1},
	}
	c := config.Default()
	rows := [][]string{{"POD", "VCORE", "VMEMORY", "GPU", "TAKEN OF IT AFTERWARDS"}}
	var waits strings.Builder
	for _, p := range []share{
		{"notebook-a", 30, 24}, {"notebook-b", 20, 8}, {"inference", 60, 40}, {"notebook-c", 10, 4}, {"training", 50, 60},
	} {
		limits := corev1.ResourceList{
			corev1.ResourceName(c.Resources.SGPU):    *resource.NewQuantity(1, resource.DecimalSI),
			corev1.ResourceName(c.Resources.VCore):   *resource.NewQuantity(p.vcore, resource.DecimalSI),
			corev1.ResourceName(c.Resources.VMemory): *resource.NewQuantity(p.vmemory, resource.DecimalSI),
		}
		request, err := quota.ParseRequest(limits, nil, &c)
		if err != nil {
			return fmt.Errorf("pod %s: %w", p.pod, err)
		}
		row := []string{p.pod, fmt.Sprint(p.vcore), fmt.Sprintf("%d GiB", p.vmemory), "-", "-"}
		if at, ok := quota.Place(gpus, &request, config.PlacementBinpack, nil); ok {
			g := &gpus[at[0]]
			claim := quota.Claim{Share: g.Share(&request), Policy: request.Policy}
			g.Charge(quota.Peak([]quota.Claim{claim}, nil))
			claim.Mark(g)
			row[3] = fmt.Sprint(g.Index)
			row[4] = fmt.Sprintf("%d %% and %d of %d MiB", g.VCore, g.UsedMiB, g.MemoryMiB)
			s.bind(&p, claim, limits)
		} else {
			reason := strings.ReplaceAll(quota.Explain(gpus, &request), ". ", ".\n  ")
			fmt.Fprintf(&waits, "%s waits: %s.\n", p.pod, reason)
		}
		rows = append(rows, row)
	}
	var node corev1.Node
	s.cluster.api.Read("nodes", "", s.sharing(), &node)
	node.Annotations = map[string]string{wellknown.SharedGPUs: quota.Publish(gpus).String()}
	node.Status.Allocatable[gpu] = *resource.NewQuantity(int64(s.pools[0].gpus)-int64(len(gpus)), resource.DecimalSI)
	s.cluster.api.Put("nodes", &node)
	s.table(rows)
	s.print("\n%s\n", waits.String())
	s.print("A GPU that is in use is filled before an idle one is begun: the idle one stays whole.\n")
	return nil
}

// sharing is the name of the node that shares GPUs: the last of the first pool, which has no gang.
func (s *story) sharing() string {
	nodes := s.pools[0].nodes
	return nodes[len(nodes)-1].name
}

// bind puts a running pod with its share into the cluster.
func (s *story) bind(p *share, claim quota.Claim, limits corev1.ResourceList) {
	bound := allocation.Bound{Version: allocation.Version, Node: s.sharing(), Containers: map[string]allocation.Sharing{
		"main": {Shares: []allocation.Share{claim.Share}, Policy: string(claim.Policy), By: allocation.ByNode},
	}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: p.pod, CreationTimestamp: s.cluster.now,
		Annotations: map[string]string{wellknown.SGPUBound: bound.String()},
	}}
	pod.Spec.NodeName, pod.Status.Phase = s.sharing(), corev1.PodRunning
	pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: limits}}}
	s.cluster.api.Put("pods", pod)
}
