package gang_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/placement"
)

// clock is a time of day, by minutes.
func clock(minute int) metav1.Time { return metav1.Unix(1_700_000_000+60*int64(minute), 0) }

func at(minute int) time.Time { return clock(minute).UTC() }

// member is a pod of gang "tf" that was made at minute 1.
func member(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: name, CreationTimestamp: clock(1), Labels: m{wellknown.GangName: "tf", wellknown.GangMinAvailable: "2"},
	}}
	for _, f := range change {
		f(pod)
	}
	return pod
}

func scheduled(status corev1.ConditionStatus, reason, message string, minute int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: status, Reason: reason, Message: message, LastTransitionTime: clock(minute),
		})
	}
}

func rejected(message string, minute int) func(*corev1.Pod) {
	return scheduled(corev1.ConditionFalse, corev1.PodReasonUnschedulable, message, minute)
}

func onNode(node string, minute int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.Phase = node, corev1.PodPending
		scheduled(corev1.ConditionTrue, "", "", minute)(p)
	}
}

func runs(minute int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		onNode("n1", 2)(p)
		p.Status.Phase = corev1.PodRunning
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: clock(minute + 1)}}},
			{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: clock(minute)}}},
		}
	}
}

func ends(phase corev1.PodPhase, minute int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		onNode("n1", 2)(p)
		p.Status.Phase = phase
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: clock(minute)}}},
		}
	}
}

func pulls(minute int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		onNode("n1", 2)(p)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{
			{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}},
		}
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: clock(minute),
		})
	}
}

func TestStateSince(t *testing.T) {
	const short = "rejected by podgroup default/tf: 1 of 2 fit, group leaf-07 is 2 GPUs short"
	later := func(p *corev1.Pod) { p.CreationTimestamp = clock(5) }
	lost := func(node string) (time.Time, bool) { return at(9), node == "lost" }
	for _, tt := range []struct {
		name string
		pods []*corev1.Pod
		min  int
		want gang.State
	}{
		{
			"queued since the first that waits was made",
			[]*corev1.Pod{member("a", later), member("b", later), member("c", runs(2))},
			2,
			gang.State{Phase: gang.Queued, Reason: "1 of 2 have a node", Since: at(5), Pods: 3, Bound: 1, Running: 1},
		},
		{
			"rejected, in the plugin's words alone, since the first was",
			[]*corev1.Pod{
				member("a", rejected("0/73 nodes are available: "+short+". no new claims to deallocate, preemption: 0/73 nodes are available: 73 Preemption is not helpful for scheduling.", 4)),
				member("b", rejected("0/73 nodes are available: "+short+". no new claims to deallocate, preemption: not eligible", 3)),
			},
			2,
			gang.State{Phase: gang.Queued, Reason: short, Since: at(1), RejectedSince: at(3), Pods: 2},
		},
		{
			"of an older Kubernetes",
			[]*corev1.Pod{member("a", rejected("0/73 nodes are available: "+short+". preemption: 0/73 nodes are available: 73 no.", 3))},
			1,
			gang.State{Phase: gang.Queued, Reason: short, Since: at(1), RejectedSince: at(3), Pods: 1},
		},
		{
			"the most frequent reason",
			[]*corev1.Pod{member("a", rejected("x", 3)), member("b", rejected("y", 3)), member("c", rejected("y", 3))},
			3,
			gang.State{Phase: gang.Queued, Reason: "y", Since: at(1), RejectedSince: at(3), Pods: 3},
		},
		{
			"one that is behind a gate was not rejected",
			[]*corev1.Pod{member("a", scheduled(corev1.ConditionFalse, corev1.PodReasonSchedulingGated, "Scheduling is blocked due to non-empty scheduling gates", 2))},
			1,
			gang.State{Phase: gang.Queued, Reason: "Scheduling is blocked due to non-empty scheduling gates", Since: at(1), Pods: 1},
		},
		{
			"pods that are missing come first",
			[]*corev1.Pod{member("a", rejected(short, 3))},
			2,
			gang.State{Phase: gang.Queued, Reason: "1 of 2 pods exist; the gang waits until their controller has created the others", Since: at(1), RejectedSince: at(3), Pods: 1},
		},
		{
			"starts since the last was bound",
			[]*corev1.Pod{member("a", runs(3)), member("b", onNode("n1", 4)), member("c", onNode("n2", 6))},
			3,
			gang.State{Phase: gang.Starting, Reason: "1 of 3 run", Since: at(6), Pods: 3, Bound: 3, Running: 1},
		},
		{
			"runs since the last that it needs does",
			[]*corev1.Pod{member("a", runs(3)), member("b", runs(9)), member("c", runs(4)), member("d", rejected("x", 8))},
			2,
			gang.State{Phase: gang.Running, Since: at(4), Pods: 4, Bound: 3, Running: 3},
		},
		{
			"done since the last was",
			[]*corev1.Pod{member("a", ends(corev1.PodSucceeded, 30)), member("b", ends(corev1.PodSucceeded, 20))},
			2,
			gang.State{Phase: gang.Succeeded, Since: at(30), Pods: 2, Succeeded: 2},
		},
		{
			"failed since the first did",
			[]*corev1.Pod{member("a", ends(corev1.PodFailed, 30)), member("b", ends(corev1.PodFailed, 20))},
			2,
			gang.State{Phase: gang.Unknown, Reason: "2 pods failed", Since: at(20), Pods: 2, Failed: 2},
		},
		{
			"terminating since the deletion request, not until its grace ends",
			[]*corev1.Pod{member("a", runs(3), func(p *corev1.Pod) {
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(clock(9)), new(int64(120))
			})},
			1,
			gang.State{Phase: gang.Unknown, Reason: "1 pod terminating", Since: at(7), Pods: 1, Bound: 1},
		},
		{
			"an image that is not there",
			[]*corev1.Pod{member("a", pulls(7))},
			1,
			gang.State{Phase: gang.Unknown, Reason: "1 pod in ImagePullBackOff", Since: at(7), Pods: 1, Bound: 1},
		},
		{
			"its node is lost since the node is",
			[]*corev1.Pod{member("a", runs(3), func(p *corev1.Pod) { p.Spec.NodeName = "lost" })},
			1,
			gang.State{Phase: gang.Unknown, Reason: "1 pod on a lost node", Since: at(9), Pods: 1, Bound: 1, Running: 1},
		},
		{
			"one that ended on a lost node is not lost",
			[]*corev1.Pod{member("a", ends(corev1.PodSucceeded, 20), func(p *corev1.Pod) { p.Spec.NodeName = "lost" })},
			1,
			gang.State{Phase: gang.Succeeded, Since: at(20), Pods: 1, Succeeded: 1},
		},
		{
			"one is done",
			[]*corev1.Pod{member("a", runs(3)), member("b", ends(corev1.PodSucceeded, 20))},
			2,
			gang.State{Phase: gang.Running, Since: at(3), Pods: 2, Bound: 1, Running: 1, Succeeded: 1},
		},
		{
			"an unknown minimum",
			[]*corev1.Pod{member("a")},
			0,
			gang.State{Phase: gang.Queued, Reason: "0 of 1 have a node", Since: at(1), Pods: 1},
		},
		{
			"unknown since when",
			[]*corev1.Pod{member("a", func(p *corev1.Pod) { p.Spec.NodeName = "n1"; p.Status.Phase = corev1.PodRunning })},
			1,
			gang.State{Phase: gang.Running, Pods: 1, Bound: 1, Running: 1},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var members []*gang.Member
			for _, pod := range tt.pods {
				m, ok := gang.MemberOf(pod, 0)
				if !ok {
					t.Fatalf("%s is in no gang", pod.Name)
				}
				members = append(members, m)
			}
			if diff := cmp.Diff(tt.want, gang.StateOf(members, tt.min, lost)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestMemberOf(t *testing.T) {
	for _, tt := range []struct {
		name string
		pod  *corev1.Pod
		in   bool
		min  int32
	}{
		{"of no gang", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: m{"app": "x"}}}, false, 0},
		{"a key without a name", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: m{wellknown.GangMinAvailable: "2"}}}, false, 0},
		{"a gang's", member("a"), true, 2},
		{"an invalid min-available", member("a", func(p *corev1.Pod) { p.Labels[wellknown.GangMinAvailable] = "five" }), true, 0},
		{"Koordinator's", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Annotations: m{wellknown.KoordinatorName: "tf"}}}, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, in := gang.MemberOf(tt.pod, 0)
			if in != tt.in || in && (got.Gang != "default/tf" || got.MinMember != tt.min) {
				t.Errorf("member %+v, %t", got, in)
			}
		})
	}
}

// topo-master keeps the task of each member, and Volcano has it in an annotation too.
func TestTaskIsBounded(t *testing.T) {
	pod := member("a", func(p *corev1.Pod) {
		p.Annotations = m{wellknown.TaskVolcano: strings.Repeat("x", 200<<10)}
	})
	if task := placement.TaskOf(pod); len(task) > wellknown.MaxLabel {
		t.Errorf("a task of %d bytes", len(task))
	}
}
