package fit

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/scheduler/queue"
)

// Duration is for how long a pod states that it runs, by activeDeadlineSeconds, which
// the kubelet enforces, or by the annotation; 0 if it does not, or not legibly.
func Duration(pod *corev1.Pod) time.Duration {
	stated, err := time.ParseDuration(pod.Annotations[wellknown.ExpectedDuration])
	if err != nil || stated < 0 {
		stated = 0
	}
	if seconds := pod.Spec.ActiveDeadlineSeconds; seconds != nil {
		if deadline := time.Duration(*seconds) * time.Second; stated == 0 || deadline < stated {
			return deadline
		}
	}
	return stated
}

// EndOf is when a pod would be gone that began now; zero if it does not state that.
func EndOf(pod *corev1.Pod, now time.Time) time.Time {
	if d := Duration(pod); d > 0 {
		return now.Add(d)
	}
	return time.Time{}
}

// end is when a pod of a node is expected to be gone. stated reports that it stated
// so, and has not been proved wrong.
func end(pod *corev1.Pod, now time.Time) (at time.Time, stated bool) {
	began, d := now, Duration(pod)
	if t := pod.Status.StartTime; t != nil {
		began = t.Time
	}
	if t := pod.DeletionTimestamp; t != nil {
		return queue.End(now, time.Until(t.Time), now), true
	}
	return queue.End(began, d, now), d > 0 && began.Add(d).After(now)
}

// Departure is when a pod is expected to be gone from its node, and what it frees then.
type Departure struct {
	At      time.Time
	UID     types.UID
	Node    string
	Amounts Amounts
}

// Departures are those of all pods of some nodes.
func Departures(nodes []framework.NodeInfo, now time.Time) (all []Departure) {
	for _, info := range nodes {
		for _, p := range info.GetPods() {
			pod := p.GetPod()
			at, _ := end(pod, now)
			all = append(all, Departure{at, pod.UID, info.Node().Name, Requests(pod)})
		}
	}
	return all
}

// GoneBy are the pods that will be gone by a time, by node.
func GoneBy(at time.Time, all []Departure) map[string]Gone {
	out := map[string]Gone{}
	for i := range all {
		if d := &all[i]; !d.At.After(at) {
			gone := out[d.Node]
			gone.Add(d.UID, d.Amounts)
			out[d.Node] = gone
		}
	}
	return out
}
