package agent

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

const (
	// measureEvery is how often GPUs are asked which processes use them, however often metrics
	// are scraped.
	measureEvery = 10 * time.Second
	// validFor is how long an answer counts if none follows it.
	validFor = 3 * measureEvery
)

// meter measures what containers use of shared GPUs, exports it as metrics, and has pods evicted that are over
// their share for too long. What a process uses is attributed to its container by its cgroup; sharing/enforce
// decides which pods are over their share. Its metrics name pods.
type meter struct {
	*Options
	descs
	state   *devicestate.State
	round   *atomic.Pointer[publish.Round]
	evicted *prometheus.CounterVec
	// timings are the measuring goroutine's alone.
	timings map[enforce.Subject]enforce.Timing

	// mu guards what follows; used is replaced and never modified.
	mu   sync.Mutex
	used []enforce.Use
	at   time.Time
}

// The metrics that name pods.
const (
	shareVCore      = "heddle_share_vcore_percent"
	shareMemory     = "heddle_share_memory_bytes"
	shareInfo       = "heddle_share_info"
	shareMemoryUsed = "heddle_share_memory_used_bytes"
	shareSMUsed     = "heddle_share_sm_used_percent"
)

func newMeter(o *Options, state *devicestate.State, round *atomic.Pointer[publish.Round]) *meter {
	const namespace, pod, container, gpu = "namespace", "pod", "container", "gpu"
	m := &meter{
		Options: o, state: state, round: round,
		evicted: promauto.With(o.Registerer).NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_overuse_evictions_total",
			Help: "Pods that enforcer evict ended: over their memory, or on a full GPU for one of a higher priority.",
		}, []string{"reason"}),
		descs: newDescs([][]string{
			{
				shareVCore, "Percent of a shared GPU's compute that a container has; 0 means no limit.",
				namespace, pod, container, gpu,
			},
			{shareMemory, "Memory of a shared GPU that a container has.", namespace, pod, container, gpu},
			{
				shareInfo, "1 for every container's share of a GPU: its policy, who chose the GPU, and what makes the limits hold.",
				namespace, pod, container, gpu, "policy", "by", "enforcer_memory", "enforcer_compute",
			},
			{
				shareMemoryUsed, "Memory of a shared GPU that a container's CUDA processes have allocated; absent where that is " +
					"not certain.", namespace, pod, container, gpu,
			},
			{
				shareSMUsed, "Percent of the time that kernels of a container ran on a shared GPU; absent where that is not " +
					"certain.", namespace, pod, container, gpu,
			},
		}),
	}
	for _, excess := range []enforce.Excess{enforce.OverMemory, enforce.FullGPU} {
		m.evicted.WithLabelValues(string(excess))
	}
	return m
}

func (m *meter) unmeasured() string { return Unmeasured(len(m.GPUs) == 0, m.Processes) }

// Unmeasured returns why it is not measured what containers use; empty if it is.
func Unmeasured(replayed bool, processes cgroup.Proc) string {
	switch {
	case replayed:
		return "a replayed machine has no driver that could be asked"
	case !processes.HostPIDs():
		return "heddle-device-plugin is not in the host's PID namespace (hostPID), so the driver's PIDs mean nothing: " +
			"the chart's gpuDevice.usageMetrics puts it there"
	}
	return ""
}

// run measures until ctx ends.
func (m *meter) run(ctx context.Context) error {
	ticker := time.NewTicker(measureEvery)
	defer ticker.Stop()
	for {
		if m.unmeasured() == "" {
			m.measure(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// measure asks the GPUs, unless no container has a share.
func (m *meter) measure(ctx context.Context) {
	on := m.round.Load().Inventory.Machine
	pods, _, known := m.API.Pods()
	used := uses(on, m.allocations(), pods)
	if len(used) > 0 {
		attribute(used, m.GPUs.Usage(ctx, on), m.Processes, containerNames(pods))
	}
	m.mu.Lock()
	m.used, m.at = used, time.Now()
	m.mu.Unlock()
	if known {
		m.evict(ctx, time.Now(), used)
	}
}

// evict is enforcer evict: it warns and evicts pods with containers over their share, as [enforce.CheckUses]
// decides. The next measurement repeats an eviction that failed.
func (m *meter) evict(ctx context.Context, now time.Time, used []enforce.Use) {
	var actions []enforce.Action
	actions, m.timings = enforce.CheckUses(now, used, m.timings)
	for i := range actions {
		a := &actions[i]
		pod := kubelet.Pod{Namespace: a.Namespace, Name: a.Pod, UID: a.UID}
		if !a.Evict {
			m.API.WarnPod(pod, wellknown.EventShareExceeded, a.Message)
		} else if m.API.EvictFor(ctx, pod, wellknown.EventShareEvicted, a.Message) {
			m.evicted.WithLabelValues(string(a.Excess)).Inc()
		}
	}
}

// allocations returns the containers that have shares.
func (m *meter) allocations() []report.Binding {
	return slices.DeleteFunc(m.state.View().Allocations(), func(b report.Binding) bool { return len(b.Shares) == 0 })
}

// Collect implements [prometheus.Collector]. Pods of one name follow one another: while two have a GPU, the
// metrics have one of them.
func (m *meter) Collect(metrics chan<- prometheus.Metric) {
	m.mu.Lock()
	used := m.used
	if time.Since(m.at) > validFor {
		used = nil
	}
	m.mu.Unlock()
	seen := map[[4]string]bool{}
	for _, b := range m.allocations() {
		for _, s := range b.Shares {
			labels := [4]string{b.Namespace, b.Pod, b.Container, s.UUID}
			if seen[labels] {
				continue
			}
			seen[labels] = true
			m.add(metrics, shareVCore, float64(s.VCore), labels[:]...)
			m.add(metrics, shareMemory, float64(s.MemoryMiB<<20), labels[:]...)
			m.add(metrics, shareInfo, 1, b.Namespace, b.Pod, b.Container, s.UUID,
				b.Policy, b.By, string(b.Enforced.Memory), string(b.Enforced.Compute))
			at := slices.IndexFunc(used, func(u enforce.Use) bool {
				return labels == [4]string{u.Namespace, u.Pod, u.Container, u.GPU} && u.UID == b.UID
			})
			if at >= 0 && used[at].Used != unknown {
				m.add(metrics, shareMemoryUsed, float64(used[at].Used), labels[:]...)
			}
			if at >= 0 && used[at].SM != unknown {
				m.add(metrics, shareSMUsed, float64(used[at].SM), labels[:]...)
			}
		}
	}
}
