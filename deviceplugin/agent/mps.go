package agent

import (
	"context"
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
	// mpsSteady is how long a daemon that failed must run until it is reported
	// as recovered, so that one that dies every few seconds is reported once.
	mpsSteady = time.Minute
	// maxMPSFaults bounds what is reported of a daemon until it recovers.
	maxMPSFaults = 4
)

// daemons are the MPS daemons of the Limiter.
func (c *core) daemons() []enforce.Daemon {
	if c.Limiter == nil {
		return nil
	}
	return c.Limiter.Daemons()
}

// mpsWatch has what was reported of each GPU's daemon, by UUID.
type mpsWatch map[string]*mpsReported

// mpsReported is what was reported of a daemon: which of its restarts are known, and
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

// changes are those since the last call. A daemon that died and runs
// again is known by its restarts.
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

// mpsFailure is what is wrong with a daemon, and what that means.
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

// watchMPS reports daemons that died, do not start, or have recovered.
func (t *shares) watchMPS(ctx context.Context, now time.Time) {
	for _, c := range t.mps.changes(now, t.daemons()) {
		notice := health.NodeEvent{Warning: c.failed, Reason: wellknown.EventMPSRecovered, Message: c.message}
		if c.failed {
			notice.Reason = wellknown.EventMPSFailed
			t.Log.WarnContext(ctx, "MPS daemon failed", "gpu", c.daemon.GPU, "message", c.message)
			t.warnMPS(&c)
		}
		t.API.Record(notice)
	}
}

// warnMPS makes Events on the pods whose containers were started with a daemon that ran.
func (t *shares) warnMPS(c *mpsChange) {
	if c.daemon.LastRunning.IsZero() {
		return
	}
	for _, b := range t.state.View().Allocations() {
		if !usesMPS(&b, c.daemon.GPU) {
			continue
		}
		t.API.WarnPod(kubelet.Pod{Namespace: b.Namespace, Name: b.Pod, UID: b.UID}, wellknown.EventMPSFailed,
			fmt.Sprintf("container %s: %s", b.Container, c.message))
	}
}

func usesMPS(b *report.Binding, uuid string) bool {
	return (b.Enforced.Memory == config.EnforceMPS || b.Enforced.Compute == config.EnforceMPS) &&
		slices.ContainsFunc(b.Shares, func(s allocation.Share) bool { return s.UUID == uuid })
}

func mpsDescs() (running, restarts *prometheus.Desc) {
	running = prometheus.NewDesc("heddle_mps_daemon_running",
		"1 for a shared GPU, by UUID, whose MPS daemon answers and has its limits, 0 if it should and does not.",
		[]string{"gpu"}, nil)
	restarts = prometheus.NewDesc("heddle_mps_daemon_restarts_total",
		"How often the MPS daemon of a shared GPU died, hung or did not start, since the GPU has consumers with MPS.",
		[]string{"gpu"}, nil)
	return running, restarts
}

// Describe implements [prometheus.Collector].
func (t *shares) Describe(descs chan<- *prometheus.Desc) {
	t.drift.Describe(descs)
	t.rejected.Describe(descs)
	t.evicted.Describe(descs)
	running, restarts := mpsDescs()
	descs <- running
	descs <- restarts
}

// Collect implements [prometheus.Collector].
func (t *shares) Collect(metrics chan<- prometheus.Metric) {
	t.drift.Collect(metrics)
	t.rejected.Collect(metrics)
	t.evicted.Collect(metrics)
	running, restarts := mpsDescs()
	for _, d := range t.daemons() {
		works := 0.0
		if d.State == enforce.Running {
			works = 1
		}
		metrics <- prometheus.MustNewConstMetric(running, prometheus.GaugeValue, works, d.GPU)
		metrics <- prometheus.MustNewConstMetric(restarts, prometheus.CounterValue, float64(d.Restarts), d.GPU)
	}
}
