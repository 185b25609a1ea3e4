//go:build e2e && linux

package e2e

import (
	"fmt"
	"maps"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/test/cluster"
)

// dragonflies reports nodes of eight GPUs as a static file places them,
// eight to a dragonfly and two dragonflies to a switchbox, and starts a
// topo-master of that mode.
func (f *fleet) dragonflies(t *testing.T, port, n int) (box, fly map[string]string) {
	t.Helper()
	f.topologyCRD(t)
	box, fly = map[string]string{}, map[string]string{}
	var nodes []cluster.SimulatedNode
	for i := range n {
		for k := range 8 {
			// Names do not show where a node is.
			name := fmt.Sprintf("fly-%02d", k*n+i)
			nodes = append(nodes, withGPUs(name, 8, nil))
			box[name], fly[name] = fmt.Sprint("switchbox-", i/2), fmt.Sprint("dragonfly-", i)
		}
	}
	f.nodes(t, nodes...)
	var reports []*v1alpha1.NodeTopology
	for name := range fly {
		r := reportOf(name, f.node(t, name).UID, "")
		r.Spec = v1alpha1.NodeTopologySpec{Path: []string{box[name], fly[name]}, PathSource: v1alpha1.SourceStatic}
		reports = append(reports, r)
	}
	f.report(t, reports...)
	f.startTopoMaster(t, "flies", port, "--exports", "none", "--mode", "switchbox")
	return box, fly
}

// job makes the pods of a master and n-1 workers of eight GPUs, as the PyTorchJob
// operator labels them, the last one first. The annotation stands on the master
// alone.
func (f *fleet) job(t *testing.T, name string, n int, annotations map[string]string) {
	t.Helper()
	for rank := n - 1; rank >= 0; rank-- {
		task, index := "worker", rank-1
		if rank == 0 {
			task, index = "master", 0
		}
		p := f.member(name, rank, n, 8, nil)
		p.Name = fmt.Sprintf("%s-%s-%d", name, task, index)
		maps.Copy(p.Labels, map[string]string{
			"training.kubeflow.org/job-name": name, "training.kubeflow.org/replica-type": task,
			"training.kubeflow.org/replica-index": strconv.Itoa(index),
		})
		if rank == 0 {
			p.Annotations = annotations
		}
		f.create(t, p)
	}
}

// ranks are the nodes of a job's pods, in order.
func (f *fleet) ranks(t *testing.T, name string, n int) []string {
	t.Helper()
	f.running(t, time.Minute, name, n)
	nodes := make([]string, n)
	for _, p := range f.podsOf(t, name) {
		index, err := strconv.Atoi(p.Labels["training.kubeflow.org/replica-index"])
		if err != nil {
			t.Fatal(err)
		}
		if p.Labels["training.kubeflow.org/replica-type"] == "worker" {
			index++
		}
		nodes[index] = p.Spec.NodeName
	}
	return nodes
}

// TestSlicesOverDragonflies places jobs of slices of 64 GPUs by the map of a
// real topo-master: every eight ranks in a row are one dragonfly, and a dragonfly
// of which one node is taken holds no slice.
func TestSlicesOverDragonflies(t *testing.T) {
	f := newFleet(t, "gpuScheduler.map.address=http://127.0.0.1:19423/node_group", "gpuScheduler.map.interval=500ms",
		"gpuScheduler.map.without=wait")
	box, fly := f.dragonflies(t, 19423, 4)
	inSlices := map[string]string{gpu + "-group-size": "64"}
	// The first dragonfly is whole no more, nor is its switchbox.
	taken := f.pod("taken", 8, nil)
	taken.Spec.SchedulerName, taken.Spec.NodeSelector = schedulerName, map[string]string{corev1.LabelHostname: "fly-00"}
	f.create(t, taken)
	f.running(t, 30*time.Second, "taken", 1)

	f.job(t, "large", 16, inSlices)
	in, large := map[string]int{}, f.ranks(t, "large", 16)
	for rank, node := range large {
		in[fly[node]]++
		if first := large[rank-rank%8]; fly[node] != fly[first] {
			t.Errorf("rank %d is on %s of %s, and its slice begins in %s", rank, node, fly[node], fly[first])
		}
		if box[node] != "switchbox-1" {
			t.Errorf("rank %d is in %s, where two slices do not fit", rank, box[node])
		}
	}
	if in["dragonfly-2"] != 8 || in["dragonfly-3"] != 8 {
		t.Errorf("ranks in %v", in)
	}
	f.job(t, "small", 8, inSlices)
	for rank, node := range f.ranks(t, "small", 8) {
		if fly[node] != "dragonfly-1" {
			t.Errorf("rank %d is on %s of %s", rank, node, fly[node])
		}
	}
	f.job(t, "third", 8, inSlices)
	t.Log(f.rejected(t, "third", 8, "rejected by podgroup third"))
	f.kubectl(t, "-n", f.namespace, "delete", "pod", "taken", "--force", "--grace-period=0")
	for rank, node := range f.ranks(t, "third", 8) {
		if fly[node] != "dragonfly-0" {
			t.Errorf("rank %d is on %s of %s", rank, node, fly[node])
		}
	}
}
