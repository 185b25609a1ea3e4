package suspect

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
)

// at is a time of the tests, some minutes after their begin.
func at(minutes float64) time.Time {
	return time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(minutes * float64(time.Minute)))
}

func TestPodOf(t *testing.T) {
	exited := func(code int32, reason string, minutes float64) corev1.ContainerStatus {
		return corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: code, Reason: reason, FinishedAt: metav1.NewTime(at(minutes)),
		}}}
	}
	for _, tt := range []struct {
		name    string
		status  corev1.PodStatus
		deleted bool
		end     time.Time
		failure string
	}{
		{name: "running", status: corev1.PodStatus{Phase: corev1.PodRunning}},
		{
			name: "a container of a running pod ended",
			status: corev1.PodStatus{
				Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{exited(1, "Error", 4), {}},
			},
		},
		{
			name: "succeeded",
			status: corev1.PodStatus{
				Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{exited(0, "Completed", 5)},
			},
			end: at(5),
		},
		{
			name: "exit code of the first container that has one, time of the last",
			status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{
				exited(0, "Completed", 3), exited(134, "Error", 4), exited(1, "Error", 5),
			}},
			end: at(5), failure: "exit code 134",
		},
		{
			name: "out of memory",
			status: corev1.PodStatus{
				Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{exited(137, "OOMKilled", 5)},
			},
			end: at(5),
		},
		{
			name: "evicted by the kubelet",
			status: corev1.PodStatus{
				Phase: corev1.PodFailed, Reason: "Evicted",
				ContainerStatuses: []corev1.ContainerStatus{exited(137, "Error", 5)},
			},
			end: at(5),
		},
		{
			name: "preempted",
			status: corev1.PodStatus{
				Phase:             corev1.PodFailed,
				ContainerStatuses: []corev1.ContainerStatus{exited(143, "Error", 5)},
				Conditions:        []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
			},
			end: at(5),
		},
		{
			name: "deadline exceeded, no container status",
			status: corev1.PodStatus{
				Phase: corev1.PodFailed, Reason: "DeadlineExceeded",
			},
			end: at(1),
		},
		{
			name: "ended by its deletion",
			status: corev1.PodStatus{
				Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{exited(143, "Error", 5)},
			},
			deleted: true, end: at(5),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}, Status: tt.status}
			pod.Spec.NodeName = "n1"
			pod.Status.StartTime = &metav1.Time{Time: at(1)}
			if tt.deleted {
				pod.DeletionTimestamp = &metav1.Time{Time: at(5)}
			}
			want := Pod{UID: "a", Gang: "ns/g", Node: "n1", Start: at(1), End: tt.end, Failure: tt.failure}
			if diff := cmp.Diff(want, PodOf(&pod, "ns/g")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodOfWithoutStart(t *testing.T) {
	if got := PodOf(&corev1.Pod{}, "ns/g"); got != (Pod{Gang: "ns/g"}) {
		t.Errorf("%+v", got)
	}
}

func TestFaultsOf(t *testing.T) {
	for _, tt := range []struct {
		kind   corev1.NodeConditionType
		status corev1.ConditionStatus
		want   []Fault
	}{
		{corev1.NodeReady, corev1.ConditionTrue, nil},
		{corev1.NodeReady, corev1.ConditionFalse, []Fault{{Since: at(1), Reason: "node not ready"}}},
		{corev1.NodeReady, corev1.ConditionUnknown, []Fault{{Since: at(1), Reason: "node not ready"}}},
		{corev1.NodeMemoryPressure, corev1.ConditionTrue, nil},
		{wellknown.ConditionDevices, corev1.ConditionTrue, nil},
		{wellknown.ConditionDevices, corev1.ConditionUnknown, nil},
		{wellknown.ConditionDevices, corev1.ConditionFalse, []Fault{{Since: at(1), Reason: "said so"}}},
		{wellknown.ConditionFabric, corev1.ConditionFalse, []Fault{{at(1), "said so", true}}},
	} {
		node := corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: tt.kind, Status: tt.status, LastTransitionTime: metav1.NewTime(at(1)), Message: "said so",
		}}}}
		if diff := cmp.Diff(tt.want, FaultsOf(&node)); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", tt.kind, tt.status, diff)
		}
	}
}
