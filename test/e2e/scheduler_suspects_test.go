//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/topo/suspect"
)

// status changes the status of a pod as its kubelet would.
func (f *fleet) status(t *testing.T, name string, change func(*corev1.PodStatus)) {
	t.Helper()
	pod, err := f.client.CoreV1().Pods(f.namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change(&pod.Status)
	if _, err = f.client.CoreV1().Pods(f.namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// crash lets the pods of a gang end with an exit code, and deletes them, as the controller of a job does that starts
// it again.
func (f *fleet) crash(t *testing.T, gang string, n int) {
	t.Helper()
	for i := range n {
		f.status(t, fmt.Sprintf("%s-%d", gang, i), func(s *corev1.PodStatus) {
			s.Phase = corev1.PodFailed
			s.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", FinishedAt: metav1.Now()},
			}}}
		})
	}
	for i := range n {
		f.kubectl(t, "-n", f.namespace, "delete", "pod", fmt.Sprintf("%s-%d", gang, i))
	}
}

// gang runs the pods of a gang and returns their nodes.
func (f *fleet) gang(t *testing.T, name string, n int) (nodes map[string]int) {
	t.Helper()
	for i := range n {
		f.create(t, f.member(name, i, n, 8, nil))
	}
	return f.running(t, name+"-", n)
}

// TestGangAvoidsSuspects: a gang that comes back goes elsewhere; once two gangs have failed on a node and run well
// elsewhere, the node is a suspect for topo-master and the scheduler, and is used without other room
// only.
func TestGangAvoidsSuspects(t *testing.T) {
	f := newFleet(t, "gpuScheduler.map.interval=500ms", "gpuScheduler.map.address=http://127.0.0.1:19427/node_group",
		"gpuScheduler.map.without=wait")
	names := numbered("suspect-", 6)
	f.leaves(t, 19427, map[string][]string{leafA: names[:3], leafB: names[3:]})
	// x fails on two nodes and runs on two others; y fails on one of the first two.
	first := f.gang(t, "x", 2)
	f.crash(t, "x", 2)
	for node := range f.gang(t, "x", 2) {
		if first[node] > 0 {
			t.Errorf("x is on node %s again", node)
		}
	}
	var bad string
	for node := range first {
		bad = max(bad, node)
	}
	y := f.member("y", 0, 1, 8, nil)
	y.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": bad}
	f.create(t, y)
	f.running(t, "y-", 1)
	f.crash(t, "y", 1)
	if at := f.gang(t, "y", 1); at[bad] > 0 {
		t.Errorf("y is on node %s again", bad)
	}
	for _, name := range []string{"x-0", "x-1", "y-0"} { // They run well for two hours.
		f.status(t, name, func(s *corev1.PodStatus) { s.StartTime = new(metav1.NewTime(time.Now().Add(-2 * time.Hour))) })
	}
	listed := func() (answer suspect.Answer, code int) {
		out, code := f.laptop(t).run(t, "topo", "suspects", "--topo-master", "http://127.0.0.1:19427", "-o", "json")
		if err := json.Unmarshal([]byte(out), &answer); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		return answer, code
	}
	eventually(t, func() string {
		answer, code := listed()
		for _, p := range answer.Suspects {
			if p.Name == bad && p.State == suspect.Suspect && len(p.Evidence) == 2 && code == 1 {
				return ""
			}
		}
		return fmt.Sprintf("exit code %d, %+v", code, answer)
	})
	out, _ := f.laptop(t).run(t, "topo", "suspects", "--topo-master", "http://127.0.0.1:19427")
	t.Log(out)
	if !strings.Contains(out, f.namespace+"/y: exit code 1") {
		t.Error("the evidence is missing")
	}
	for _, name := range []string{"z", "w"} { // Two nodes are free beside the suspect.
		if at := f.gang(t, name, 1); at[bad] > 0 {
			t.Errorf("%s is on the suspect node %s", name, bad)
		}
	}
	if at := f.gang(t, "last", 1); at[bad] != 1 {
		t.Errorf("last is on %v, the only room is node %s", at, bad)
	}
	if out, _ = f.laptop(t).run(t, "why", "-n", f.namespace, "--topo-master", "http://127.0.0.1:19427", "last"); !strings.Contains(out, bad) {
		t.Errorf("heddle why: %s", out)
	}
}

// TestSparesRepairGangs: one idle node of each leaf is kept for the members of running gangs that are made again.
func TestSparesRepairGangs(t *testing.T) {
	f := newFleet(t, "gpuScheduler.map.interval=500ms", "gpuScheduler.map.address=http://127.0.0.1:19428/node_group",
		"gpuScheduler.map.without=wait", "gpuScheduler.gangs.spares=1")
	names := numbered("spare-", 6)
	at := f.leaves(t, 19428, map[string][]string{leafA: names[:3], leafB: names[3:]}, "--spares", "1")
	f.gang(t, "x", 2)
	f.gang(t, "y", 2)
	small := f.pod("small", 1, nil)
	small.Spec.SchedulerName = schedulerName
	f.create(t, small)
	f.rejected(t, "small", 1, "node(s) reserved for the repair of running gangs")
	laptop := []string{"--topo-master", "http://127.0.0.1:19428"}
	if out, _ := f.laptop(t).run(t, append([]string{"topo", "tree"}, laptop...)...); strings.Count(out, "kept for repair") != 2 {
		t.Errorf("heddle topo tree:\n%s", out)
	}
	if out, _ := f.laptop(t).run(t, append([]string{"why", "-n", f.namespace, "small"}, laptop...)...); !strings.Contains(out, "kept for the repair of running gangs") {
		t.Errorf("heddle why:\n%s", out)
	}
	lost := f.bound(t, "x-")["x-0"]
	f.kubectl(t, "cordon", lost)
	f.kubectl(t, "-n", f.namespace, "delete", "pod", "x-0", "--force", "--grace-period=0")
	f.create(t, f.member("x", 0, 2, 8, nil))
	f.running(t, "x-", 2)
	if nodes := f.bound(t, "x-"); at[nodes["x-0"]] != at[nodes["x-1"]] {
		t.Errorf("x is on %v, in two leaves", nodes)
	}
	f.rejected(t, "small", 1, "node(s) reserved for the repair of running gangs")
}
