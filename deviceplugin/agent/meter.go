package agent

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/deviceplugin/report"
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
	overuse
	state *devicestate.State
	round *atomic.Pointer[publish.Round]

	// mu guards what follows; used is replaced and never modified.
	mu   sync.Mutex
	used map[consumer]consumed
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
	return &meter{
		Options: o, state: state, round: round, overuse: newOveruse(o),
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
}

// unmeasured returns why it is not measured what containers use; empty if it is.
func (m *meter) unmeasured() string {
	switch {
	case len(m.GPUs) == 0:
		return "a replayed machine has no driver that could be asked"
	case !m.Processes.HostPIDs():
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
	var used map[consumer]consumed
	r, allocations := m.round.Load(), m.allocations()
	pods, _, known := m.API.Pods()
	if len(allocations) > 0 {
		used = attribute(allocations, m.GPUs.Usage(ctx, r.Inventory.Machine), m.Processes, containerNames(pods))
	}
	m.mu.Lock()
	m.used, m.at = used, time.Now()
	m.mu.Unlock()
	if known {
		m.check(ctx, time.Now(), uses(r.Inventory.Machine, allocations, used, pods))
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
			now := usedBy(used, &b, s.UUID)
			if now.bytes != unknown {
				m.add(metrics, shareMemoryUsed, float64(now.bytes), labels[:]...)
			}
			if now.sm != unknown {
				m.add(metrics, shareSMUsed, float64(now.sm), labels[:]...)
			}
		}
	}
}
