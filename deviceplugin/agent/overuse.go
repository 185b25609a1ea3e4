package agent

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// overuse is enforcer evict: it warns and evicts pods whose containers are over their
// share. Its round is called by one goroutine.
type overuse struct {
	*core
	timings   map[enforce.Subject]enforce.Timing
	evictions *rate.Limiter
	evicted   *prometheus.CounterVec
}

func newOveruse(c *core) *overuse {
	o := &overuse{
		core: c, evictions: rate.NewLimiter(rate.Every(evictEvery), evictBurst),
		evicted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_overuse_evictions_total",
			Help: "Pods that enforcer evict ended: over their memory, or on a full GPU for one of a higher priority.",
		}, []string{"reason"}),
	}
	for _, excess := range []enforce.Excess{enforce.OverMemory, enforce.FullGPU} {
		o.evicted.WithLabelValues(string(excess))
	}
	return o
}

// round takes what containers use now.
func (o *overuse) round(ctx context.Context, now time.Time, allocations []report.Binding, used map[consumer]consumed) {
	pods, _, known := o.API.Pods()
	if !known {
		return
	}
	byUID := make(map[string]*corev1.Pod, len(pods))
	for _, p := range pods {
		// The kubelet knows a static pod by the hash of its file.
		byUID[cmp.Or(p.Annotations[corev1.MirrorPodAnnotationKey], string(p.UID))] = p
	}
	var actions []enforce.Action
	actions, o.timings = enforce.CheckUses(
		o.config().SGPU.Enforce.Evict, now, uses(o.machine(), allocations, used, byUID), o.timings)
	for i := range actions {
		o.act(ctx, now, &actions[i])
	}
}

// act warns a pod or evicts it; an eviction that fails is repeated by the next round.
func (o *overuse) act(ctx context.Context, now time.Time, a *enforce.Action) {
	pod := kubelet.Pod{Namespace: a.Namespace, Name: a.Pod, UID: a.UID}
	switch {
	case !a.Evict:
		o.API.WarnPod(pod, wellknown.EventShareExceeded, a.Message)
		return
	case !o.evictions.AllowN(now, 1):
		return
	}
	key := types.NamespacedName{Namespace: a.Namespace, Name: a.Pod}
	switch err := o.API.Evict(ctx, key, types.UID(a.UID)); {
	case err == nil:
		o.evicted.WithLabelValues(string(a.Excess)).Inc()
		o.Log.InfoContext(ctx, "evicted", "pod", pod.String(), "reason", a.Message)
		o.API.WarnPod(pod, wellknown.EventShareEvicted, a.Message)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // It is gone.
	default:
		o.Log.WarnContext(ctx, "evicting a pod over its share failed", "pod", pod.String(), "err", err)
	}
}

// uses are what all containers with shares have and use. A pod that terminates is not evicted
// again; one of a file would come back at once, and the API server cannot end it.
func uses(
	m *machine.Machine, allocations []report.Binding, used map[consumer]consumed, pods map[string]*corev1.Pod,
) []enforce.Use {
	var all []enforce.Use
	for i := range allocations {
		b := &allocations[i]
		p := pods[b.UID]
		if p == nil {
			continue
		}
		_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
		for _, s := range b.Shares {
			gpu := gpuAt(m, s.UUID)
			now, ok := used[consumer{b.Namespace, b.Pod, b.UID, b.Container, s.UUID}]
			if gpu == nil {
				continue
			}
			if !ok {
				now = consumed{unknown, unknown}
			}
			all = append(all, enforce.Use{
				Namespace: b.Namespace, Pod: b.Pod, UID: b.UID, Container: b.Container,
				GPU: s.UUID, Index: gpu.Index, Total: gpu.MemoryMiB << 20, Share: s.MemoryMiB << 20,
				Used: now.bytes, SM: now.sm, Percent: unlimited(b, s), Priority: allocate.Priority(p),
				Evictable: b.Enforced.Memory == config.EnforceEvict && !mirror, Terminating: p.DeletionTimestamp != nil,
			})
		}
	}
	return all
}

// unlimited is the compute that a container has of a GPU and that nothing keeps it to;
// 0 if there is no such limit.
func unlimited(b *report.Binding, s allocation.Share) int64 {
	if b.Enforced.Compute != config.EnforceNone || b.Policy != string(quota.FixedShare) || s.VCore >= quota.Whole {
		return 0
	}
	return int64(s.VCore)
}
