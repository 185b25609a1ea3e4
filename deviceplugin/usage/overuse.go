package usage

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/sharing/enforce"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// overuse is enforcer evict: it warns and evicts pods with containers over their share,
// as [enforce.CheckUses] decides. It is for one goroutine.
type overuse struct {
	api     *apiserver.Client
	evictor *apiserver.Evictor
	timings map[enforce.Subject]enforce.Timing
	evicted *prometheus.CounterVec
}

func newOveruse(api *apiserver.Client) overuse {
	o := overuse{
		api: api, evictor: apiserver.NewEvictor(api),
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

// check acts on what containers use now. The next check repeats an eviction that failed.
func (o *overuse) check(ctx context.Context, now time.Time, uses []enforce.Use) {
	var actions []enforce.Action
	actions, o.timings = enforce.CheckUses(now, uses, o.timings)
	for i := range actions {
		a := &actions[i]
		pod := kubelet.Pod{Namespace: a.Namespace, Name: a.Pod, UID: a.UID}
		if !a.Evict {
			o.api.WarnPod(pod, wellknown.EventShareExceeded, a.Message)
		} else if o.evictor.Evict(ctx, pod, wellknown.EventShareEvicted, a.Message) {
			o.evicted.WithLabelValues(string(a.Excess)).Inc()
		}
	}
}

// uses returns the shares and the use of all containers with shares. A terminating pod is not
// evicted again; nor is a static pod: it would come back at once, and the API server cannot end it.
func uses(
	m *machine.Machine, allocations []report.Binding, used map[consumer]consumed, pods []*corev1.Pod,
) []enforce.Use {
	byUID := make(map[string]*corev1.Pod, len(pods))
	for _, p := range pods {
		// The kubelet knows a static pod by the hash of its file.
		byUID[cmp.Or(p.Annotations[corev1.MirrorPodAnnotationKey], string(p.UID))] = p
	}
	var all []enforce.Use
	for i := range allocations {
		b := &allocations[i]
		p := byUID[b.UID]
		if p == nil {
			continue
		}
		_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
		for _, s := range b.Shares {
			at := slices.IndexFunc(m.GPUs, func(g machine.GPU) bool { return g.UUID == s.UUID })
			if at < 0 {
				continue
			}
			now := usedBy(used, b, s.UUID)
			all = append(all, enforce.Use{
				Namespace: b.Namespace, Pod: b.Pod, UID: b.UID, Container: b.Container,
				GPU: s.UUID, Index: m.GPUs[at].Index, Total: m.GPUs[at].MemoryMiB << 20, Share: s.MemoryMiB << 20,
				Used: now.bytes, SM: now.sm, Percent: unlimited(b, s), Priority: allocate.Priority(p),
				Evictable: b.Enforced.Memory == config.EnforceEvict && !mirror, Terminating: p.DeletionTimestamp != nil,
			})
		}
	}
	return all
}

// unlimited returns the compute that a container has of a GPU and that nothing keeps it to;
// 0 without such a limit.
func unlimited(b *report.Binding, s allocation.Share) int64 {
	if b.Enforced.Compute != config.EnforceNone || b.Policy != string(quota.FixedShare) || s.VCore >= quota.Whole {
		return 0
	}
	return int64(s.VCore)
}
