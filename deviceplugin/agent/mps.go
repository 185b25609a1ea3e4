package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/allocation"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

const (
	// mpsSteady is the time that a failed daemon must run until it is reported as recovered, so
	// that a daemon that dies every few seconds is reported once.
	mpsSteady = time.Minute
	// maxMPSFaults bounds the reported faults of a daemon until it recovers.
	maxMPSFaults = 4
)

// daemons returns the MPS daemons of a Limiter, which may be nil.
func daemons(l Limiter) []enforce.Daemon {
	if l == nil {
		return nil
	}
	return l.Daemons()
}

// mpsWatch remembers what was reported about the daemon of each GPU, by UUID.
type mpsWatch map[string]*mpsReported

// mpsReported remembers what was reported about a daemon: its known restarts, and
// the faults since it last worked.
type mpsReported struct {
	restarts int
	faults   map[string]bool
}

// mpsChange is worth an Event.
type mpsChange struct {
	daemon enforce.Daemon
	// failed is false for a daemon that recovered.
	failed  bool
	message string
}

// changes returns the changes since the last call. A daemon that died and runs again is known by
// its restarts.
func (w mpsWatch) changes(now time.Time, all []enforce.Daemon) []mpsChange {
	var found []mpsChange
	for i := range all {
		d := &all[i]
		known := w[d.GPU]
		if known == nil || d.Restarts < known.restarts { // It is another one.
			known = &mpsReported{faults: map[string]bool{}}
			w[d.GPU] = known
		}
		fault := d.Reason
		if fault == "" && d.Restarts > known.restarts {
			fault = d.LastError
		}
		known.restarts = d.Restarts
		switch {
		case fault != "" && !known.faults[fault] && len(known.faults) < maxMPSFaults:
			known.faults[fault] = true
			found = append(found, mpsChange{*d, true, mpsFailure(d, fault)})
		case fault == "" && d.State == enforce.Running && len(known.faults) > 0 && now.Sub(d.Since) >= mpsSteady:
			clear(known.faults)
			found = append(found, mpsChange{daemon: *d, message: "the " + mpsName(d) + " runs again"})
		}
	}
	for uuid := range w {
		if !slices.ContainsFunc(all, func(d enforce.Daemon) bool { return d.GPU == uuid }) {
			delete(w, uuid) // No container uses it any more.
		}
	}
	return found
}

func mpsName(d *enforce.Daemon) string {
	return fmt.Sprintf("MPS daemon of GPU %d (%s)", d.Index, d.GPU)
}

// mpsFailure describes a fault of a daemon and its consequence.
func mpsFailure(d *enforce.Daemon, fault string) string {
	switch {
	case d.Restarts == 0 || d.State == enforce.Running && d.Reason != "":
		return fmt.Sprintf("the %s does not take the limits of its containers, and those that need them wait: %s",
			mpsName(d), fault)
	case d.LastRunning.IsZero():
		return fmt.Sprintf("the %s does not start, and containers that need it wait: %s", mpsName(d), fault)
	}
	return fmt.Sprintf("the %s failed and is started again; CUDA programs that used it must be started again too: %s",
		mpsName(d), fault)
}

// notice returns the Event on the Node.
func (c *mpsChange) notice() health.NodeEvent {
	if c.failed {
		return health.NodeEvent{Warning: true, Reason: wellknown.EventMPSFailed, Message: c.message}
	}
	return health.NodeEvent{Reason: wellknown.EventMPSRecovered, Message: c.message}
}

// onPods returns the Events on the pods that were started with a daemon that ran.
func (c *mpsChange) onPods(allocations []report.Binding) map[kubelet.Pod]string {
	messages := map[kubelet.Pod]string{}
	if c.daemon.LastRunning.IsZero() {
		return messages
	}
	for _, b := range allocations {
		uses := slices.ContainsFunc(b.Shares, func(s allocation.Share) bool { return s.UUID == c.daemon.GPU })
		if uses && (b.Enforced.Memory == config.EnforceMPS || b.Enforced.Compute == config.EnforceMPS) {
			pod := kubelet.Pod{Namespace: b.Namespace, Name: b.Pod, UID: b.UID}
			messages[pod] = "container " + b.Container + ": " + c.message
		}
	}
	return messages
}

// mpsMetrics are the metrics of a Limiter's daemons.
type mpsMetrics struct{ Limiter }

func (mpsMetrics) descs() (running, restarts *prometheus.Desc) {
	running = prometheus.NewDesc("heddle_mps_daemon_running",
		"1 for a shared GPU, by UUID, if its MPS daemon answers and has its limits, 0 if it should and does not.",
		[]string{"gpu"}, nil)
	restarts = prometheus.NewDesc("heddle_mps_daemon_restarts_total",
		"How often the MPS daemon of a shared GPU died, hung or did not start, since the GPU has consumers with MPS.",
		[]string{"gpu"}, nil)
	return running, restarts
}

// Describe implements [prometheus.Collector].
func (m mpsMetrics) Describe(descs chan<- *prometheus.Desc) {
	running, restarts := m.descs()
	descs <- running
	descs <- restarts
}

// Collect implements [prometheus.Collector].
func (m mpsMetrics) Collect(metrics chan<- prometheus.Metric) {
	running, restarts := m.descs()
	for _, d := range daemons(m.Limiter) {
		works := 0.0
		if d.State == enforce.Running {
			works = 1
		}
		metrics <- prometheus.MustNewConstMetric(running, prometheus.GaugeValue, works, d.GPU)
		metrics <- prometheus.MustNewConstMetric(restarts, prometheus.CounterValue, float64(d.Restarts), d.GPU)
	}
}
