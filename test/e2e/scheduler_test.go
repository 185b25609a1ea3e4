//go:build e2e && linux

package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/cluster"
)

// TestAssignment is which pods the chart's admission gives to heddle-scheduler.
func TestAssignment(t *testing.T) {
	f := newFleet(t)
	f.assign(t)
	const standard = "default-scheduler"
	for _, tt := range []struct {
		name string
		do   func(*corev1.Pod)
		want string
	}{
		{"neither GPU nor gang", func(*corev1.Pod) {}, standard},
		{"a gang without GPUs", func(p *corev1.Pod) { p.Labels = map[string]string{gangName: "x"} }, schedulerName},
		{"the bare key", func(p *corev1.Pod) { p.Labels = map[string]string{"pod-group.scheduling.sigs.k8s.io": "x"} }, schedulerName},
		{"a key that only begins so", func(p *corev1.Pod) { p.Labels = map[string]string{"pod-group.scheduling.sigs.k8s.io.x/y": "x"} }, standard},
		{
			"Koordinator's gang",
			func(p *corev1.Pod) { p.Annotations = map[string]string{"gang.scheduling.koordinator.sh/name": "x"} }, schedulerName,
		},
		{"a share of a GPU", func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = f.pod("x", 0, nil).Spec.Containers[0].Resources
			p.Spec.Containers[0].Resources.Limits["nvidia.com/sgpu"] = p.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU]
		}, schedulerName},
		{"a GPU for an init container", func(p *corev1.Pod) {
			p.Spec.InitContainers = f.pod("x", 1, nil).Spec.Containers
			p.Spec.InitContainers[0].Name = "init"
		}, schedulerName},
		{"its owner chose", func(p *corev1.Pod) {
			p.Spec.SchedulerName = "volcano"
			p.Labels = map[string]string{gangName: "x"}
		}, "volcano"},
		{"its owner chose the default scheduler", func(p *corev1.Pod) {
			p.Spec.SchedulerName = standard
			p.Labels = map[string]string{gangName: "x", "heddle.dev/assign": "none"}
		}, standard},
		{"its owner chose a node", func(p *corev1.Pod) {
			p.Spec.NodeName = "anywhere"
			p.Labels = map[string]string{gangName: "x"}
		}, standard},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := f.pod("probe", 0, nil)
			tt.do(p)
			if why := f.goesTo(t, p, tt.want); why != "" {
				t.Error(why)
			}
		})
	}
}

// leaves reports nodes by the leaf that they are on, and starts a topo-master.
func (f *fleet) leaves(t *testing.T, port int, all map[string][]string, flags ...string) (at map[string]string) {
	t.Helper()
	f.topologyCRD(t)
	at = map[string]string{}
	var nodes []cluster.SimulatedNode
	for leaf, names := range all {
		for _, name := range names {
			nodes = append(nodes, withGPUs(name, 8, nil))
			at[name] = leaf
		}
	}
	f.nodes(t, nodes...)
	var reports []*v1alpha1.NodeTopology
	for name, leaf := range at {
		reports = append(reports, reportOf(name, f.node(t, name).UID, leaf))
	}
	f.report(t, reports...)
	f.startTopoMaster(t, "sched", port, append(flags, "--exports", "none")...)
	return at
}

const (
	leafA = "b83fd20000001a01"
	leafB = "b83fd20000001b01"
)

func numbered(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s%d", prefix, i))
	}
	return all
}
