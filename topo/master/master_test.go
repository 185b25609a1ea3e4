package master_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/master"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

func (c *cluster) sample() {
	c.in("node-sample1", "switchbox-sample1", "dragonfly-sample1")
	c.in("node-sample2", "switchbox-sample1", "dragonfly-sample1")
	c.in("node-sample3", "switchbox-sample1", "dragonfly-sample2")
	c.in("node-sample4", "switchbox-sample1", "dragonfly-sample2")
}

func TestALyingReportIsIgnored(t *testing.T) {
	c := newCluster(t)
	c.in("honest", "switchbox-1", "dragonfly-1")
	other := c.node("other", true)
	path := v1alpha1.NodeTopologySpec{Path: []string{"switchbox-1", "dragonfly-1"}, PathSource: v1alpha1.SourceStatic}
	c.node("claimed", true)
	c.report("claimed", other, path, time.Time{}) // By the UID of another Node.
	c.report("nowhere", other, path, time.Time{}) // About no Node at all.
	c.node("orphan", true)
	c.Put("nodetopologies", &v1alpha1.NodeTopology{ObjectMeta: metav1.ObjectMeta{Name: "orphan"}, Spec: path})
	r := c.replica(t, fabric.ModeSwitchbox)
	r.until(t, "four nodes", nodes(4))
	var got snapshot.Topology
	if err := json.Unmarshal([]byte(get(t, r.url+"/v1/topology").body), &got); err != nil {
		t.Fatal(err)
	}
	want := []snapshot.Ignored{
		{Name: "claimed", Reason: "it is owned by another Node, or by an earlier one of its name"},
		{Name: "nowhere", Reason: "Node not found"},
		{Name: "orphan", Reason: "it is not owned by the Node of its name"},
	}
	if diff := cmp.Diff(want, got.Ignored); diff != "" {
		t.Errorf("ignored (-want +got):\n%s", diff)
	}
	if n := len(r.until(t, "the group", nodes(4)).Tree.Select("", "dragonfly-1")[0].Child); n != 1 {
		t.Errorf("%d nodes in the group, want the honest one", n)
	}
	// The Node is created again: its report is of the earlier one until the worker writes again.
	c.Remove("nodes", "", "honest")
	r.until(t, "three nodes", nodes(3))
	uid := c.node("honest", true)
	v := r.until(t, "the new node", nodes(4))
	if d := v.Nodes["honest"]; d.Believed() != nil {
		t.Error("the report of the deleted Node is believed")
	}
	c.report("honest", uid, path, time.Time{})
	r.until(t, "its report", reports(1))
}

// What the worker counts, what the kubelet offers and what pods hold are three
// things.
func TestGPUsThatAreNotOffered(t *testing.T) {
	c := newCluster(t)
	put := func(name, offered string, counted int32) {
		uid := c.node(name, true)
		var n corev1.Node
		c.Read("nodes", "", name, &n)
		n.Status.Allocatable = corev1.ResourceList{}
		if offered != "" {
			n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse(offered)
		}
		if name == "two-shared" {
			gpu := `{"uuid":"GPU-%d","index":%[1]d,"memoryMiB":9,"slots":9,"numa":0,"zone":0,"healthy":true,"taken":{"vcore":0,"memoryMiB":%[1]d,"slots":%[1]d}}`
			n.Annotations = map[string]string{wellknown.SharedGPUs: `{"version":1,"cards":[` + fmt.Sprintf(gpu+","+fmt.Sprintf(gpu, 1), 0) + `]}`}
		}
		c.Put("nodes", &n)
		if counted > 0 {
			c.report(name, uid, v1alpha1.NodeTopologySpec{Accelerators: []v1alpha1.Accelerator{{Product: "H20", Count: counted}}}, time.Time{})
		}
	}
	put("all", "8", 8)
	put("one-unfit", "7", 8)
	put("no-plugin", "", 8)
	put("no-worker", "4", 0)
	put("no-gpus", "", 0)
	put("two-shared", "6", 8)
	var pod corev1.Pod // It holds more than there is: two GPUs were lost.
	pod.Namespace, pod.Name, pod.Spec.NodeName = "a", "p", "no-plugin"
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("10")},
	}}}
	c.Put("pods", &pod)
	r := c.replica(t, fabric.ModeLeaf)
	r.until(t, "four reports", reports(4))
	r.until(t, "six nodes", nodes(6))
	var all snapshot.Topology
	if err := json.Unmarshal([]byte(get(t, r.url+"/v1/topology").body), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]snapshot.GPUs{"": all.GPUs}
	for i := range all.Tree {
		got[all.Tree[i].Name] = all.Tree[i].GPUs
	}
	want := map[string]snapshot.GPUs{
		"":           {Free: new(25), Offered: 25, Shared: 2, Used: 9, Total: 36},
		"all":        {Free: new(8), Offered: 8, Total: 8},
		"one-unfit":  {Free: new(7), Offered: 7, Total: 8},
		"no-plugin":  {Free: new(0), Used: 8, Total: 8},
		"no-worker":  {Free: new(4), Offered: 4, Total: 4},
		"no-gpus":    {},
		"two-shared": {Free: new(6), Offered: 6, Shared: 2, Used: 1, Total: 8},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
}

func TestLevelsChange(t *testing.T) {
	c := newCluster(t)
	c.sample()
	levels := make(chan []fabric.Level)
	r := c.replica(t, fabric.ModeSwitchbox, func(o *master.Options) { o.NewLevels = levels })
	r.until(t, "four reports", reports(4))
	levels <- []fabric.Level{{Kind: "switchbox", By: fabric.ByPath}}
	r.until(t, "one level", func(v *snapshot.Snapshot) bool {
		return len(v.Tree.Select("dragonfly", "")) == 0 && len(v.Tree.Select("switchbox", "")) == 1
	})
	c.in("node-sample5", "switchbox-sample2")
	r.until(t, "two switchboxes", func(v *snapshot.Snapshot) bool { return len(v.Tree.Select("switchbox", "")) == 2 })
}
