package breaker

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRead has messages of kubelet 1.37, containerd 2 and runc.
func TestRead(t *testing.T) {
	at := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	const (
		gpus, admission, startError = "nvidia.com/gpu", "UnexpectedAdmissionError", "StartError"

		hook = "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: " +
			"unable to start container process: error during container init: error running createContainer hook #0: exit status 1"
		cdi  = "failed to create containerd container: CDI device injection failed: unresolvable CDI devices heddle.dev/gpu=a-b"
		few  = "Allocate failed due to requested number of devices unavailable for " + gpus + ". Requested: 1, Available: 0, which is unexpected"
		gone = "Allocate failed due to device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown " +
			"desc = GPU is lost, which is unexpected"
	)
	rejected := func(reason, message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, reason, message
		}
	}
	state := func(s corev1.ContainerState) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: s}} }
	}
	waiting := func(reason, message string) func(*corev1.Pod) {
		return state(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
	}
	ended := func(reason, message string, at time.Time) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			Reason: reason, Message: message, StartedAt: metav1.NewTime(at),
		}}
	}
	backOff := func(last corev1.ContainerState) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			waiting("CrashLoopBackOff", "back-off 10s restarting failed container")(p)
			p.Status.ContainerStatuses[0].LastTerminationState = last
		}
	}
	other := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits["example.com/fpga"] = resource.MustParse("1")
		rejected(admission, gone)(p)
	}
	waits, failed := Pod{Waits: true}, func(why string) Pod { return Pod{Failed: why} }
	for _, tt := range []struct {
		name string
		do   func(*corev1.Pod)
		want Pod
	}{
		{"bound", func(*corev1.Pod) {}, waits},
		{"too few devices", rejected(admission, few), Pod{Rejected: true, Failed: few}},
		{"the plugin's error", rejected(admission, gone), Pod{Rejected: true, Failed: gone}},
		{"an error of either plugin", other, Pod{}},
		{"no healthy device", rejected(admission, "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "+gpus+", which is unexpected"), Pod{}},
		{"no plugin", rejected(admission, "Allocate failed due to can't allocate unregistered device "+gpus+", which is unexpected"), Pod{}},
		{"CPUs", rejected(admission, "Allocate failed due to not enough cpus available to satisfy request: requested=9, available=8, which is unexpected"), Pod{}},
		{"topology", rejected("TopologyAffinityError", "Pod was rejected: Resources cannot be allocated with Topology locality"), Pod{}},
		{"preempted", rejected("Preempting", "Preempted in order to admit critical pod"), Pod{}},
		{"image", waiting("ImagePullBackOff", `Back-off pulling image "cdi-hook"`), waits},
		{"CDI", waiting("CreateContainerError", cdi), failed("CreateContainerError: " + cdi)},
		{"hook", waiting("RunContainerError", hook), failed("RunContainerError: " + hook)},
		{"hook, and not restarted", state(ended(startError, hook, time.Unix(0, 0))), failed("StartError: " + hook)},
		{"hook, before the next try", backOff(ended(startError, hook, time.Unix(0, 0))), failed("StartError: " + hook)},
		{"a command that is not there", state(ended(startError, `exec: "nosuch": executable file not found in $PATH`, time.Unix(0, 0))), waits},
		{"its own hook", waiting("PostStartHookError", "CDI"), waits},
		{"the device plugin's answer", waiting("CreateContainerConfigError", "PreStartContainer: CDI"), waits},
		{"cgroups", waiting("RunContainerError", "unable to apply cgroup configuration"), waits},
		{"runs", state(corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(at)}}), Pod{Started: at}},
		{"ran", state(ended("Error", "CDI hook", at)), Pod{Started: at}},
		{"runs again and again", backOff(ended("Error", "", at)), Pod{Started: at}},
		{"ran, and does not any more", func(p *corev1.Pod) {
			waiting("CreateContainerError", cdi)(p)
			p.Status.ContainerStatuses[0].LastTerminationState = ended("Completed", "", at)
		}, Pod{Started: at, Failed: "CreateContainerError: " + cdi}},
		{"terminating", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(at)) }, Pod{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "u"}}
			p.Spec.Containers = []corev1.Container{{Name: "main"}, {Name: "sidecar"}}
			p.Status.StartTime = new(metav1.NewTime(at))
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpus: resource.MustParse("1")}
			tt.do(p)
			tt.want.Name, tt.want.UID, tt.want.Admitted = "a/b", "u", at
			got, has := Read(p, []string{gpus}, false)
			if diff := cmp.Diff(tt.want, got); diff != "" || !has {
				t.Errorf("has devices: %t (-want +got):\n%s", has, diff)
			}
			if _, has := Read(p, []string{"amd.com/gpu"}, true); has {
				t.Error("a pod without heddle's devices counts")
			}
			// By a claim.
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}
			got, has = Read(p, nil, true)
			if tt.want.Rejected {
				tt.want.Rejected, tt.want.Failed = false, "" // No device plugin is asked.
			}
			if !cmp.Equal(tt.want, got) || !has {
				t.Errorf("by a claim: %v, %t", got, has)
			}
		})
	}
}
