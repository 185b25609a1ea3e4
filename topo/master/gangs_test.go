package master_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// gangPod puts a member with 4 GPUs; of no node it waits, else it runs.
func (c *cluster) gangPod(name, gang, node string, change ...func(*corev1.Pod)) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ai", Name: name, CreationTimestamp: metav1.Unix(1_700_000_000, 0),
		Labels: map[string]string{wellknown.GangName: gang, wellknown.GangMinAvailable: "2"},
	}}
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")},
	}}}
	p.Status.Phase = corev1.PodPending
	if node != "" {
		p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
		p.Status.StartTime = new(metav1.Unix(1_700_000_060, 0))
	}
	for _, f := range change {
		f(p)
	}
	c.Put("pods", p)
}

// gangs is GET /v1/gangs.
func (r *replica) gangs(t *testing.T, query string) []snapshot.Gang {
	t.Helper()
	var all snapshot.Gangs
	if err := json.Unmarshal([]byte(get(t, r.url+"/v1/gangs"+query).body), &all); err != nil {
		t.Fatal(err)
	}
	return all.Gangs
}

// untilGangs waits until the gangs are these.
func (r *replica) untilGangs(t *testing.T, what string, want []snapshot.Gang) {
	t.Helper()
	var diff string
	defer func() {
		if t.Failed() {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}()
	eventually(t, what, func() bool {
		diff = cmp.Diff(want, r.gangs(t, ""), cmpopts.EquateEmpty())
		return diff == ""
	})
}

// gauges are a metric by its one label.
func (r *replica) gauges(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				out[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	return out
}

// A gang's phases follow its pods.
func TestGangs(t *testing.T) {
	c := newCluster(t)
	c.in("n1", "switchbox-1", "dragonfly-1")
	c.in("n2", "switchbox-1", "dragonfly-1")
	c.in("n3", "switchbox-1", "dragonfly-2")
	r := c.replica(t, fabric.ModeSwitchbox)
	r.until(t, "three reports", reports(3))
	r.untilGangs(t, "none", nil)

	made, began := time.Unix(1_700_000_000, 0).UTC(), time.Unix(1_700_000_060, 0).UTC()
	fly, box := &snapshot.GroupName{Name: "dragonfly-1", Kind: "dragonfly"}, &snapshot.GroupName{Name: "switchbox-1", Kind: "switchbox"}
	tf := snapshot.Gang{Namespace: "ai", Name: "tf", API: gang.PodGroup, State: gang.Queued, Reason: "1 of 2 pods exist", Since: made, MinMember: 2, Members: 1, GPUs: 4}
	c.gangPod("tf-worker-0", "tf", "")
	r.untilGangs(t, "a pod is missing", []snapshot.Gang{tf})

	reject := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: "0/3 nodes are available: rejected by podgroup ai/tf: 1 of 2 fit.", LastTransitionTime: metav1.Unix(1_700_000_030, 0),
		}}
	}
	c.gangPod("tf-worker-0", "tf", "", reject)
	c.gangPod("tf-worker-1", "tf", "", reject)
	tf.Members, tf.GPUs, tf.Reason, tf.RejectedSince = 2, 8, "rejected by podgroup ai/tf: 1 of 2 fit", time.Unix(1_700_000_030, 0).UTC()
	r.untilGangs(t, "it is rejected", []snapshot.Gang{tf})

	// Rank 1 is on n1: ranks decide the order of nodes, not their names.
	c.gangPod("tf-worker-1", "tf", "n1")
	c.gangPod("tf-worker-0", "tf", "n2")
	tf = snapshot.Gang{
		Namespace: "ai", Name: "tf", API: gang.PodGroup, State: gang.Running, Since: began, MinMember: 2, Members: 2, Bound: 2, Running: 2, GPUs: 8,
		Group: fly, Nodes: []string{"n2", "n1"},
	}
	r.untilGangs(t, "it runs", []snapshot.Gang{tf})

	// Another comes, over two groups, and one of another namespace's name.
	c.gangPod("a-0", "a", "n1")
	c.gangPod("a-1", "a", "n3")
	a := tf
	a.Name, a.Group, a.Nodes = "a", box, []string{"n1", "n3"}
	r.untilGangs(t, "two", []snapshot.Gang{a, tf})
	want := map[string]float64{"Queued": 0, "Starting": 0, "Running": 2, "Unknown": 0, "Succeeded": 0}
	if diff := cmp.Diff(want, r.gauges(t, "heddle_topology_gangs")); diff != "" {
		t.Errorf("metric (-want +got):\n%s", diff)
	}

	// A node is lost, and so is a's member on it.
	c.node("n3", false)
	a.State, a.Reason, a.Since = gang.Unknown, "1 pod on a lost node", time.Unix(1_700_000_000, 0).UTC()
	r.untilGangs(t, "a lost node", []snapshot.Gang{a, tf})
	if diff := cmp.Diff([]snapshot.Gang{a}, r.gangs(t, "?state=Unknown&namespace=ai")); diff != "" {
		t.Errorf("selected (-want +got):\n%s", diff)
	}

	// The pods of tf end, and those of a go.
	done := func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodSucceeded
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Unix(1_700_000_090, 0)}}},
		}
	}
	for i, node := range []string{"n2", "n1"} {
		c.gangPod(fmt.Sprint("tf-worker-", i), "tf", node, done)
		c.Remove("pods", "ai", fmt.Sprint("a-", i))
	}
	tf = snapshot.Gang{
		Namespace: "ai", Name: "tf", API: gang.PodGroup, State: gang.Succeeded, Since: time.Unix(1_700_000_090, 0).UTC(), MinMember: 2, Members: 2,
	}
	r.untilGangs(t, "it is done", []snapshot.Gang{tf})
	// Nothing of it is left when its pods are gone.
	c.Remove("pods", "ai", "tf-worker-0")
	c.Remove("pods", "ai", "tf-worker-1")
	r.untilGangs(t, "nothing is left", nil)
}

// A change of gangs alone is a new generation, and not a new tree.
func TestGangChangeKeepsTree(t *testing.T) {
	c := newCluster(t)
	c.in("n1", "switchbox-1", "dragonfly-1")
	r := c.replica(t, fabric.ModeSwitchbox)
	before := r.until(t, "the report", reports(1))
	c.gangPod("tf-0", "tf", "")
	after := r.until(t, "a gang", func(v *snapshot.Snapshot) bool { return len(v.GangList()) == 1 })
	if after.Generation <= before.Generation || after.Mapped != before.Mapped || after.Tree != before.Tree {
		t.Errorf("generation %d after %d, the map's %d after %d", after.Generation, before.Generation, after.Mapped, before.Mapped)
	}
	// The same again changes nothing.
	c.gangPod("tf-0", "tf", "", func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} })
	c.gangPod("tf-1", "tf", "")
	last := r.until(t, "two members", func(v *snapshot.Snapshot) bool { return v.GangList()[0].Members == 2 })
	if last.Generation > after.Generation+1 {
		t.Errorf("%d generations for one member", last.Generation-after.Generation)
	}
}

// Replicas agree, also one that starts later, and one that watches no pods reports it.
func TestGangsOfReplicas(t *testing.T) {
	c := newCluster(t)
	c.in("n1", "switchbox-1", "dragonfly-1")
	r := c.replica(t, fabric.ModeSwitchbox)
	r.until(t, "the report", reports(1))
	for i := range 40 {
		c.gangPod(fmt.Sprint("x-", i), fmt.Sprint("x", i%7), "n1")
	}
	full := func(v *snapshot.Snapshot) bool {
		n := 0
		for _, g := range v.GangList() {
			n += g.Bound
		}
		return n == 40
	}
	r.until(t, "all pods", full)
	late := c.replica(t, fabric.ModeSwitchbox)
	late.until(t, "all pods", full)
	one, two := get(t, r.url+"/v1/gangs"), get(t, late.url+"/v1/gangs")
	if diff := cmp.Diff(one.body, two.body); diff != "" || one.header.Get("Etag") != two.header.Get("Etag") {
		t.Errorf("two replicas (-one +other):\n%s", diff)
	}
	blind := c.replica(t, fabric.ModeSwitchbox, func(o *master.Options) { o.CountsPods = false })
	blind.until(t, "the report", reports(1))
	if got := get(t, blind.url+"/v1/gangs").body; got != `{"unwatched":true,"gangs":[]}`+"\n" {
		t.Errorf("without pods: %s", got)
	}
}

// A pod without GPUs that loses its gang's label leaves the gang, and one that
// has never been in a gang is none of its members.
func TestPodLeavesGang(t *testing.T) {
	c := newCluster(t)
	c.in("n1", "switchbox-1", "dragonfly-1")
	withoutGPUs := func(p *corev1.Pod) { p.Spec.Containers = nil }
	plain := func(p *corev1.Pod) { p.Spec.Containers, p.Labels = nil, nil }
	c.gangPod("driver", "tf", "n1", withoutGPUs)
	c.gangPod("other", "tf", "n1", plain)
	r := c.replica(t, fabric.ModeSwitchbox)
	members := func(n int) func(*snapshot.Snapshot) bool {
		return func(s *snapshot.Snapshot) bool {
			list := s.GangList()
			return n == 0 && len(list) == 0 || len(list) == 1 && list[0].Members == n
		}
	}
	r.until(t, "one member", members(1))
	c.gangPod("other", "tf", "n1", withoutGPUs)
	r.until(t, "two members", members(2))
	c.gangPod("other", "tf", "n1", plain)
	r.until(t, "one member again", members(1))
	c.KindDown("pods", true) // The watch does not see the next change.
	c.gangPod("driver", "tf", "n1", plain)
	c.KindDown("pods", false)
	r.until(t, "no gang", members(0))
}
