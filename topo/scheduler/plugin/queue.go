package plugin

import (
	"context"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-scheduler/framework"

	"github.com/heddle-dev/heddle/topo/placement"
	"github.com/heddle-dev/heddle/topo/scheduler/gangcache"
)

// QueueName is the name of the plugin that sorts the scheduler's queue.
const QueueName = "HeddleQueue"

// Queue sorts the scheduler's queue by priority, then by the age of the gang or of the pod. The
// pods of a gang stay together. It is a separate plugin, since all profiles of a scheduler share
// one queue, and only one profile has the plugin Heddle, which knows the gangs.
type Queue struct {
	cache atomic.Pointer[gangcache.Cache]
}

var _ framework.QueueSortPlugin = (*Queue)(nil)

// Factory returns the plugin, as kube-scheduler's registry requires.
func (q *Queue) Factory(context.Context, runtime.Object, framework.Handle) (framework.Plugin, error) {
	return q, nil
}

// Name returns the plugin's name.
func (*Queue) Name() string { return QueueName }

// Less reports whether a comes before b.
func (q *Queue) Less(a, b framework.QueuedEntityInfo) bool {
	first, second := q.key(a), q.key(b)
	if order := first.Compare(&second); order != 0 {
		return order < 0
	}
	if first.Name != "" { // Both are members of one gang.
		x, y := placement.RankOf(podIn(a)), placement.RankOf(podIn(b))
		if order := x.Compare(y); order != 0 {
			return order < 0 // Plans count the skew in this order.
		}
	}
	return a.GetTimestamp().Before(b.GetTimestamp())
}

// podIn returns nil for a native PodGroup.
func podIn(e framework.QueuedEntityInfo) *corev1.Pod {
	if pod, ok := e.(interface{ GetPodInfo() framework.PodInfo }); ok {
		return pod.GetPodInfo().GetPod()
	}
	return nil
}

// key returns what an entity is sorted by. The age of a native PodGroup counts from its first
// attempt.
func (q *Queue) key(e framework.QueuedEntityInfo) gangcache.QueueKey {
	if cache, pod := q.cache.Load(), podIn(e); pod != nil && cache != nil {
		return cache.QueueKey(pod)
	}
	key := gangcache.QueueKey{Priority: e.GetPriority(), Created: e.GetTimestamp()}
	if first := e.GetInitialAttemptTimestamp(); first != nil {
		key.Created = *first
	}
	return key
}
