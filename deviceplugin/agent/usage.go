package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/deviceplugin/report"
)

const (
	// usageEvery is how often GPUs are asked which processes use them, however often metrics
	// are scraped.
	usageEvery = 10 * time.Second
	// usageFor is how long an answer counts, if none follows it.
	usageFor = 3 * usageEvery
)

// usageMetrics are what containers have of shared GPUs, and what they use. All of them name
// pods.
type usageMetrics struct {
	*core
	overuse *overuse

	vcore, memory, info, memoryUsed, smUsed *prometheus.Desc

	// logged is run's alone: the log has the reason why nothing is measured.
	logged bool

	// mu guards what follows; used is replaced and never modified.
	mu   sync.Mutex
	used map[consumer]consumed
	at   time.Time
}

func newUsageMetrics(c *core) *usageMetrics {
	labels := []string{"namespace", "pod", "container", "gpu"}
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, slices.Concat(labels, more), nil)
	}
	return &usageMetrics{
		core: c, overuse: newOveruse(c),
		vcore: desc("heddle_share_vcore_percent",
			"Percent of a shared GPU's compute that a container has; 0 has no cap. GPUs by UUID."),
		memory: desc("heddle_share_memory_bytes", "Memory of a shared GPU that a container has."),
		info: desc("heddle_share_info", "1 for every container's share of a GPU: its policy, who chose the GPU, and what "+
			"makes the limits hold.", "policy", "by", "enforcer_memory", "enforcer_compute"),
		memoryUsed: desc("heddle_share_memory_used_bytes",
			"Memory of a shared GPU that a container's CUDA processes have allocated; absent where that is not certain."),
		smUsed: desc("heddle_share_sm_used_percent",
			"Percent of the time that kernels of a container ran on a shared GPU; absent where that is not certain."),
	}
}

// unmeasured is why it is not measured what containers use; empty if it is.
func (u *usageMetrics) unmeasured() string {
	switch {
	case len(u.GPUs) == 0:
		return "a replayed machine has no driver that could be asked"
	case !u.Processes.HostPIDs():
		return "heddle-device-plugin is not in the host's PID namespace (hostPID), so the driver's PIDs mean nothing: " +
			"the chart's gpuDevice.usageMetrics puts it there"
	}
	return ""
}

// run takes what containers use until ctx ends.
func (u *usageMetrics) run(ctx context.Context) error {
	ticker := time.NewTicker(usageEvery)
	defer ticker.Stop()
	for {
		u.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// look takes what containers use, or logs once why it cannot.
func (u *usageMetrics) look(ctx context.Context) {
	switch reason := u.unmeasured(); {
	case reason == "":
		u.take(ctx)
	case !u.logged && u.sharing():
		u.logged = true
		u.Log.InfoContext(ctx, "usage of shared GPUs is not measured", "reason", reason)
	}
}

// take asks the GPUs, unless no container has a share.
func (u *usageMetrics) take(ctx context.Context) {
	var used map[consumer]consumed
	allocations := u.allocations()
	if len(allocations) > 0 {
		pods, _, _ := u.API.Pods()
		used = attribute(allocations, u.GPUs.Usage(ctx, u.Source.Machine()), u.Processes, containerNames(pods))
	}
	u.mu.Lock()
	u.used, u.at = used, time.Now()
	u.mu.Unlock()
	u.overuse.round(ctx, time.Now(), allocations, used)
}

// allocations are those with shares.
func (u *usageMetrics) allocations() []report.Binding {
	return slices.DeleteFunc(u.state.View().Allocations(), func(b report.Binding) bool { return len(b.Shares) == 0 })
}

// Describe implements [prometheus.Collector].
func (u *usageMetrics) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{u.vcore, u.memory, u.info, u.memoryUsed, u.smUsed} {
		descs <- d
	}
}

// part is what the metrics have of a container's part of a GPU.
type part struct {
	vcore, memory float64
	consumed
}

// Collect implements [prometheus.Collector]. Pods of one name follow one another,
// and while the first still has its GPUs the two are one to these labels: what
// they have is added up, and what they use is known if it is of both.
func (u *usageMetrics) Collect(metrics chan<- prometheus.Metric) {
	u.mu.Lock()
	used := u.used
	if time.Since(u.at) > usageFor {
		used = nil
	}
	u.mu.Unlock()
	parts := make(map[[4]string]part)
	infos := make(map[[8]string]bool)
	for _, b := range u.allocations() {
		for _, s := range b.Shares {
			labels := [4]string{b.Namespace, b.Pod, b.Container, s.UUID}
			p := parts[labels]
			p.vcore += float64(s.VCore)
			p.memory += float64(s.MemoryMiB << 20)
			now, ok := used[consumer{b.Namespace, b.Pod, b.UID, b.Container, s.UUID}]
			if !ok {
				now = consumed{unknown, unknown}
			}
			p.consumed = consumed{plus(p.bytes, now.bytes), plus(p.sm, now.sm)}
			parts[labels] = p
			infos[[8]string{
				b.Namespace, b.Pod, b.Container, s.UUID, b.Policy, b.By, string(b.Enforced.Memory), string(b.Enforced.Compute),
			}] = true
		}
	}
	gauge := func(d *prometheus.Desc, v float64, labels []string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for labels, p := range parts {
		gauge(u.vcore, p.vcore, labels[:])
		gauge(u.memory, p.memory, labels[:])
		if p.bytes != unknown {
			gauge(u.memoryUsed, float64(p.bytes), labels[:])
		}
		if p.sm != unknown {
			gauge(u.smUsed, float64(p.sm), labels[:])
		}
	}
	for labels := range infos {
		gauge(u.info, 1, labels[:])
	}
}

// measured is the metric of whether there is a use to see. It names no pod.
type measured struct{ *usageMetrics }

func (measured) desc() *prometheus.Desc {
	return prometheus.NewDesc("heddle_share_usage_measured",
		"Whether the node looks at what containers use of its shared GPUs; 0 if it cannot, absent if it shares none.",
		nil, nil)
}

// Describe implements [prometheus.Collector].
func (m measured) Describe(descs chan<- *prometheus.Desc) { descs <- m.desc() }

// Collect implements [prometheus.Collector].
func (m measured) Collect(metrics chan<- prometheus.Metric) {
	if !m.sharing() {
		return
	}
	value := 0.0
	if m.unmeasured() == "" {
		value = 1
	}
	metrics <- prometheus.MustNewConstMetric(m.desc(), prometheus.GaugeValue, value)
}
