package plugin

import (
	"context"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/gang/rank"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
	"github.com/heddle-dev/heddle/topo/scheduler/queue"
)

// QueueName is that of the plugin that sorts the scheduler's queue.
const QueueName = "HeddleQueue"

// Queue sorts the scheduler's queue: by priority, then by the age of the gang, whose pods
// stay together, or of the pod. It is a plugin of its own, since all profiles of a
// scheduler have one queue, and one profile has the plugin Heddle, which knows the gangs.
type Queue struct {
	cache atomic.Pointer[gangcache.Cache]
}

var _ framework.QueueSortPlugin = (*Queue)(nil)

// Factory returns the plugin, in the form that kube-scheduler registers.
func (q *Queue) Factory(context.Context, runtime.Object, framework.Handle) (framework.Plugin, error) {
	return q, nil
}

// Name is the plugin's.
func (*Queue) Name() string { return QueueName }

// Less reports whether a comes before b.
func (q *Queue) Less(a, b framework.QueuedEntityInfo) bool {
	first, second := q.key(a), q.key(b)
	if order := first.Compare(&second); order != 0 {
		return order < 0
	}
	if first.Name != "" { // Members of one gang. Ranks of other pods mean nothing to each other.
		x, y := rank.Of(podIn(a)), rank.Of(podIn(b))
		if order := x.Compare(y); order != 0 {
			return order < 0 // As the plan expects them, which counts skew member by member.
		}
	}
	return a.GetTimestamp().Before(b.GetTimestamp())
}

// podIn is nil for a native PodGroup.
func podIn(e framework.QueuedEntityInfo) *corev1.Pod {
	if pod, ok := e.(interface{ GetPodInfo() framework.PodInfo }); ok {
		return pod.GetPodInfo().GetPod()
	}
	return nil
}

// key is what the place of a pod depends on. A native PodGroup has that of its first attempt.
func (q *Queue) key(e framework.QueuedEntityInfo) queue.Gang {
	if cache, pod := q.cache.Load(), podIn(e); pod != nil && cache != nil {
		return cache.QueueKey(pod)
	}
	key := queue.Gang{Priority: e.GetPriority(), Created: e.GetTimestamp()}
	if first := e.GetInitialAttemptTimestamp(); first != nil {
		key.Created = *first
	}
	return key
}
