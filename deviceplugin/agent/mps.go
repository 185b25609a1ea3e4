package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/deviceplugin/binder"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/sharing/enforce"
)

// Reasons of Events about the MPS daemons of cards: on the Node, and a failure
// on the pods that use the daemon as well.
const (
	ReasonMPSFailed    = "MPSFailed"
	ReasonMPSRecovered = "MPSRecovered"
)

const (
	// mpsSteady is how long a daemon that failed must run until it is said to be
	// well again, so that one that dies every few seconds is told of once.
	mpsSteady = time.Minute
	// maxMPSFaults bounds what is told of a daemon until it is well again.
	maxMPSFaults = 4
)

// mpsDaemons are the MPS daemons of a Limiter that has some.
func (a *Agent) mpsDaemons() []enforce.Daemon {
	if l, ok := a.Limiter.(interface{ Daemons() []enforce.Daemon }); ok {
		return l.Daemons()
	}
	return nil
}

// mpsWatch remembers what was told of each card's daemon, by UUID.
type mpsWatch map[string]*mpsTold

// mpsTold is what was told of a daemon: which of its restarts are known, and
// the faults since it was last well.
type mpsTold struct {
	restarts int
	faults   map[string]bool
}

// mpsChange is worth an Event.
type mpsChange struct {
	daemon enforce.Daemon
	// failed is false for a daemon that is well again.
	failed  bool
	message string
}

// see gives what has changed since the last look. A daemon that died and runs
// again is known by its restarts.
func (w mpsWatch) see(now time.Time, all []enforce.Daemon) []mpsChange {
	var changes []mpsChange
	for i := range all {
		d := &all[i]
		told := w[d.GPU]
		if told == nil || d.Restarts < told.restarts { // It is another one.
			told = &mpsTold{faults: map[string]bool{}}
			w[d.GPU] = told
		}
		fault := d.Reason
		if fault == "" && d.Restarts > told.restarts {
			fault = d.LastError
		}
		told.restarts = d.Restarts
		switch {
		case fault != "" && !told.faults[fault] && len(told.faults) < maxMPSFaults:
			told.faults[fault] = true
			changes = append(changes, mpsChange{*d, true, mpsFailure(d, fault)})
		case fault == "" && d.State == enforce.Running && len(told.faults) > 0 && now.Sub(d.Since) >= mpsSteady:
			clear(told.faults)
			changes = append(changes, mpsChange{daemon: *d, message: "the " + mpsName(d) + " runs again"})
		}
	}
	for card := range w {
		if !slices.ContainsFunc(all, func(d enforce.Daemon) bool { return d.GPU == card }) {
			delete(w, card) // Nobody uses it any more.
		}
	}
	return changes
}

func mpsName(d *enforce.Daemon) string {
	return fmt.Sprintf("MPS daemon of card %d (%s)", d.Index, d.GPU)
}

// mpsFailure says what is wrong with a daemon, and what that means.
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

// watchMPS tells of daemons that died, do not start, or are well again.
func (t *tenancy) watchMPS(ctx context.Context, now time.Time) {
	a := t.agent
	for _, c := range t.mps.see(now, a.mpsDaemons()) {
		notice := health.NodeEvent{Warning: c.failed, Reason: ReasonMPSRecovered, Message: c.message}
		if c.failed {
			notice.Reason = ReasonMPSFailed
			a.Log.WarnContext(ctx, "MPS does not work on a card", "card", c.daemon.GPU, "message", c.message)
			t.warnMPS(&c)
		}
		t.record(ctx, notice)
	}
}

// warnMPS tells the pods whose containers were started with a daemon that ran.
func (t *tenancy) warnMPS(c *mpsChange) {
	if c.daemon.LastRunning.IsZero() {
		return
	}
	for _, b := range t.agent.binder.Bindings() {
		if !usesMPS(&b, c.daemon.GPU) {
			continue
		}
		t.agent.API.WarnPod(kubelet.Pod{Namespace: b.Namespace, Name: b.Pod, UID: b.UID}, ReasonMPSFailed,
			fmt.Sprintf("container %s: %s", b.Container, c.message))
	}
}

func usesMPS(b *binder.Binding, card string) bool {
	if b.Enforced.Memory != enforce.MPS && b.Enforced.Compute != enforce.MPS {
		return false
	}
	for i := range b.Shares {
		if b.Shares[i].UUID == card {
			return true
		}
	}
	return false
}

// mpsMetrics are those of the daemons.
type mpsMetrics struct {
	agent             *Agent
	running, restarts *prometheus.Desc
}

func newMPSMetrics(a *Agent) *mpsMetrics {
	return &mpsMetrics{
		agent: a,
		running: prometheus.NewDesc("heddle_mps_daemon_running",
			"1 for a shared GPU, by UUID, whose MPS daemon answers and has its limits, 0 if it should and does not.",
			[]string{"gpu"}, nil),
		restarts: prometheus.NewDesc("heddle_mps_daemon_restarts_total",
			"How often the MPS daemon of a shared GPU died, hung or did not start, since the GPU has tenants with MPS.",
			[]string{"gpu"}, nil),
	}
}

// Describe implements [prometheus.Collector].
func (m *mpsMetrics) Describe(descs chan<- *prometheus.Desc) { descs <- m.running; descs <- m.restarts }

// Collect implements [prometheus.Collector].
func (m *mpsMetrics) Collect(metrics chan<- prometheus.Metric) {
	for _, d := range m.agent.mpsDaemons() {
		running := 0.0
		if d.State == enforce.Running {
			running = 1
		}
		metrics <- prometheus.MustNewConstMetric(m.running, prometheus.GaugeValue, running, d.GPU)
		metrics <- prometheus.MustNewConstMetric(m.restarts, prometheus.CounterValue, float64(d.Restarts), d.GPU)
	}
}
