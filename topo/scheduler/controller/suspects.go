package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/suspect"
)

// ended selects pods that succeeded or failed, which kube-scheduler's informer drops.
const ended = "status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"

// followEnded passes pods that have ended to the memory of failures.
func (c *Controller) followEnded(ctx context.Context) {
	factory := informers.NewSharedInformerFactoryWithOptions(c.Handle.ClientSet(), 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = ended }),
		informers.WithTransform(slim))
	defer factory.Shutdown()
	// It fails in an informer that has ended alone.
	_, _ = factory.Core().V1().Pods().Informer().AddEventHandler(handler(c.see, func(*corev1.Pod) {}))
	factory.StartWithContext(ctx)
	<-ctx.Done()
}

// slim drops what is not used of a pod that has ended.
func slim(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	out := &corev1.Pod{ObjectMeta: pod.ObjectMeta, Status: pod.Status}
	out.ManagedFields = nil
	out.Spec.NodeName, out.Spec.SchedulingGroup = pod.Spec.NodeName, pod.Spec.SchedulingGroup
	return out, nil
}

// see passes a pod of a gang to the memory of failures.
func (c *Controller) see(pod *corev1.Pod) {
	if pod.Status.StartTime == nil || !gang.Concerns(pod) {
		return
	}
	if m, ok := gang.MemberOf(pod, 1); ok {
		c.Suspects.See(suspect.PodOf(pod, m.Gang))
	}
}
