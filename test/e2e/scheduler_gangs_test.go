//go:build e2e && linux

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	gangGroups = "pod-group.scheduling.sigs.k8s.io/groups"
	inOneLeaf  = "heddle.dev/gang-required-level"
)

// later runs a pod that came after all others: they have had their turn.
func (f *fleet) later(t *testing.T, name string) {
	t.Helper()
	p := f.pod(name, 0, nil)
	p.Spec.SchedulerName = schedulerName
	f.create(t, p)
	f.running(t, 30*time.Second, name, 1)
}

// TestGangGroup is a service of two roles that are of use together alone: each
// is a gang, and none runs until there is room for both.
func TestGangGroup(t *testing.T) {
	f := newFleet(t)
	f.gpus(t, "group-a", 4, nil)
	together := map[string]string{gangGroups: fmt.Sprintf(`["%[1]s/prefill", "%[1]s/decode"]`, f.namespace)}
	// It alone would fit.
	f.gang(t, "prefill", 2, 2, together)
	f.later(t, "later-1")
	if on := f.bound(t, "prefill"); len(on) > 0 {
		t.Errorf("without the other role %v", on)
	}
	f.gang(t, "decode", 3, 1, together)
	t.Log(f.rejected(t, "prefill", 2, "rejected by podgroup prefill"))
	t.Log(f.rejected(t, "decode", 3, "rejected by podgroup decode"))
	f.later(t, "later-2")
	if on := f.bound(t, "decode"); len(on) > 0 {
		t.Errorf("without room for both %v", on)
	}
	f.gpus(t, "group-b", 4, nil)
	f.running(t, 30*time.Second, "prefill", 2)
	f.running(t, 30*time.Second, "decode", 3)
}

// remake makes a gang whose members a controller makes again.
func (f *fleet) remake(t *testing.T, name string, n, gpus int, annotations map[string]string) {
	t.Helper()
	f.makeSet(t, name, n, f.member(name, 0, n, gpus, annotations))
}

func (f *fleet) makeSet(t *testing.T, name string, n int, template *corev1.Pod) {
	t.Helper()
	if _, err := f.client.AppsV1().StatefulSets(f.namespace).Create(t.Context(), f.set(name, n, template), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.kubectlAfter(t, "-n", f.namespace, "delete", "statefulset", name, "--cascade=orphan") })
}

// uids distinguish pods of one name.
func (f *fleet) uids(t *testing.T, prefix string) map[string]types.UID {
	t.Helper()
	all := map[string]types.UID{}
	for _, p := range f.podsOf(t, prefix) {
		all[p.Name] = p.UID
	}
	return all
}

// again waits until there are n pods, all of them run, and those named are new.
func (f *fleet) again(t *testing.T, prefix string, n int, before map[string]types.UID, renewed ...string) {
	t.Helper()
	eventually(t, time.Minute, func() string {
		now := f.uids(t, prefix)
		for _, name := range renewed {
			if now[name] == "" || now[name] == before[name] {
				return name + " is not made again"
			}
		}
		return ""
	})
	f.running(t, 30*time.Second, prefix, n)
}

// TestMemberRecreated lets members of a gang fail: those that the controller
// makes in their place land beside the others, although a whole leaf is empty.
func TestMemberRecreated(t *testing.T) {
	f := newFleet(t, "gpuScheduler.map.address=http://127.0.0.1:19421/node_group", "gpuScheduler.map.interval=500ms",
		"gpuScheduler.map.without=wait")
	_, at := f.leaves(t, 19421, map[string][]string{leafA: numbered("again-a", 5), leafB: numbered("again-b", 3)})
	f.remake(t, "again", 3, 8, nil)
	f.running(t, time.Minute, "again", 3)
	for _, failed := range [][]string{{"again-1"}, {"again-0", "again-2"}, {"again-0", "again-1", "again-2"}} {
		before, on := f.uids(t, "again"), f.bound(t, "again")
		for _, pod := range failed {
			f.kubectl(t, "-n", f.namespace, "patch", "pod", pod, "--subresource=status", "--type=merge",
				"-p", `{"status": {"phase": "Failed", "reason": "Test"}}`)
		}
		f.again(t, "again", 3, before, failed...)
		for pod, node := range f.bound(t, "again") {
			if at[node] != leafB {
				t.Errorf("after %v failed %s is on %s, and was on %s", failed, pod, node, on[pod])
			}
		}
	}
}

// notReady makes a simulated node report what a kubelet without a runtime reports,
// and returns how it recovers.
func (f *fleet) notReady(t *testing.T, node string) (well func()) {
	t.Helper()
	f.kubectl(t, "annotate", "node", node, "kwok.x-k8s.io/node-")
	f.kubectl(t, "patch", "node", node, "--subresource=status", "-p",
		`{"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "container runtime is down"}]}}`)
	return func() {
		f.kubectl(t, "annotate", "node", node, "kwok.x-k8s.io/node=fake")
		f.kubectl(t, "wait", "node/"+node, "--for=condition=Ready", "--timeout=30s")
	}
}

// TestNodeNotReady takes a node from a gang that runs: nothing new goes there,
// what is made in place of its member goes elsewhere in the gang's leaf, and
// the node is used again once it is well.
func TestNodeNotReady(t *testing.T) {
	f := newFleet(t, "gpuScheduler.map.address=http://127.0.0.1:19422/node_group", "gpuScheduler.map.interval=500ms",
		"gpuScheduler.map.without=wait")
	m, at := f.leaves(t, 19422, map[string][]string{leafA: numbered("ready-a", 4), leafB: numbered("ready-b", 2)})
	f.remake(t, "train", 3, 8, nil)
	f.running(t, time.Minute, "train", 3)
	before, on := f.uids(t, "train"), f.bound(t, "train")
	lost := on["train-1"]
	well := f.notReady(t, lost)
	eventually(t, 30*time.Second, func() string {
		if _, _, body := m.get(t, "/node_group"); !strings.Contains(body, `"name":"`+lost+`","kind":"node","status":"NotReady"`) {
			return "the map shows " + body
		}
		return ""
	})
	// As an operator who repairs the node does; the others stay where they are.
	f.kubectl(t, "-n", f.namespace, "delete", "pod", "train-1", "--force", "--grace-period=0")
	f.again(t, "train", 3, before, "train-1")
	now := f.bound(t, "train")
	if at[now["train-1"]] != leafA || now["train-1"] == lost || now["train-0"] != on["train-0"] || now["train-2"] != on["train-2"] {
		t.Errorf("%s is lost, and %v became %v", lost, on, now)
	}
	f.gang(t, "pair", 2, 8, nil)
	for node := range f.running(t, 30*time.Second, "pair", 2) {
		if at[node] != leafB {
			t.Errorf("the pair is on %s", node)
		}
	}
	f.gang(t, "last", 1, 8, nil)
	t.Log(f.rejected(t, "last", 1, "rejected by podgroup last"))
	well()
	if nodes := f.running(t, 30*time.Second, "last", 1); nodes[lost] != 1 {
		t.Errorf("the last is on %v, not on %s", nodes, lost)
	}
}

// priority makes a priority class.
func (f *fleet) priority(t *testing.T, value int) (class string) {
	t.Helper()
	class = fmt.Sprintf("p%d-%s", value, f.namespace)
	f.kubectl(t, "create", "priorityclass", class, fmt.Sprintf("--value=%d", value))
	t.Cleanup(func() { f.kubectlAfter(t, "delete", "priorityclass", class) })
	return class
}

// TestGangPreemption is a gang of a higher priority, and two lower ones that have every
// second node: one of them goes whole, that of the lower priority, and the other stays.
func TestGangPreemption(t *testing.T) {
	f := newFleet(t)
	classes := map[string]string{"high": f.priority(t, 1000), "mid": f.priority(t, 10)}
	f.nodes(t, withGPUs("whole-0", 8, nil), withGPUs("whole-1", 8, nil), withGPUs("whole-2", 8, nil), withGPUs("whole-3", 8, nil))
	add := func(name string, nodes ...string) {
		for i := range 2 {
			p := f.member(name, i, 2, 8, nil)
			p.Spec.PriorityClassName = classes[name]
			if len(nodes) > 0 {
				p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: nodes[i]}
			}
			f.create(t, p)
		}
		f.running(t, time.Minute, name, 2)
	}
	add("low", "whole-0", "whole-2")
	add("mid", "whole-1", "whole-3")
	mid := f.uids(t, "mid")
	events := f.client.CoreV1().Events(f.namespace)
	add("high")
	if left := f.uids(t, "low"); len(left) != 0 {
		t.Errorf("%v of the lowest gang are left", left)
	}
	for _, p := range f.podsOf(t, "mid") {
		if p.DeletionTimestamp != nil || p.UID != mid[p.Name] || len(mid) != 2 {
			t.Errorf("%s dies", p.Name)
		}
	}
	for _, p := range f.podsOf(t, "high") {
		if p.Status.NominatedNodeName != p.Spec.NodeName && p.Status.NominatedNodeName != "" {
			t.Errorf("%s is nominated for %s", p.Name, p.Status.NominatedNodeName)
		}
	}
	eventually(t, 30*time.Second, func() string {
		list, err := events.List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Preempted"})
		if err != nil {
			return err.Error()
		}
		if len(list.Items) != 2 {
			return fmt.Sprintf("%d Events Preempted, want 2", len(list.Items))
		}
		return ""
	})
}

// TestPreemption is a gang of a higher priority: the pods in its place are preempted, and
// no pod is for one that would not fit even then.
func TestPreemption(t *testing.T) {
	f := newFleet(t)
	class := f.priority(t, 1000)
	f.nodes(t, withGPUs("prey-a", 8, nil), withGPUs("prey-b", 8, nil), withGPUs("prey-c", 4, nil))
	for i := range 4 {
		p := f.pod(fmt.Sprintf("low-%d", i), 4, nil)
		p.Spec.SchedulerName, p.Spec.NodeSelector = schedulerName, map[string]string{corev1.LabelHostname: "prey-" + string("aabb"[i])}
		f.create(t, p)
	}
	f.running(t, 30*time.Second, "low", 4)
	high := func(name string, n int) {
		for i := range n {
			p := f.member(name, i, n, 8, nil)
			p.Spec.PriorityClassName = class
			f.create(t, p)
		}
	}
	before := f.uids(t, "low")
	high("three", 3)
	t.Log(f.rejected(t, "three", 3, "rejected by podgroup three"))
	f.later(t, "later")
	for _, p := range f.podsOf(t, "low") {
		if p.DeletionTimestamp != nil || p.UID != before[p.Name] {
			t.Errorf("%s dies for half a gang", p.Name)
		}
	}
	if now := f.uids(t, "low"); len(now) != 4 {
		t.Fatalf("%d of 4 are left", len(now))
	}
	for _, p := range f.podsOf(t, "three") {
		if p.Status.NominatedNodeName != "" || p.Spec.Priority == nil || *p.Spec.Priority != 1000 {
			t.Errorf("%s has priority %v and is nominated for %q", p.Name, p.Spec.Priority, p.Status.NominatedNodeName)
		}
	}
	for i := range 3 {
		f.kubectl(t, "-n", f.namespace, "delete", "pod", fmt.Sprintf("three-%d", i), "--force", "--grace-period=0")
	}
	high("two", 2)
	if nodes := f.running(t, time.Minute, "two", 2); nodes["prey-a"] != 1 || nodes["prey-b"] != 1 {
		t.Errorf("the gang is on %v", nodes)
	}
	if left := f.uids(t, "low"); len(left) != 0 {
		t.Errorf("%v are left beside the gang", left)
	}
}
