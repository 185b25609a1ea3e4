package health

import (
	"context"
	"log/slog"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/internal/notify"
)

// DefaultPollInterval is how often GPUs are asked whether they are alive. A
// lost one is found within this and one poll's timeout: under five seconds.
const DefaultPollInterval = 2 * time.Second

// Source is where scans of the machine come from: host.Host, host.Replay.
// Changed has one reader, which is the Monitor; others subscribe to that.
type Source interface {
	Machine() *machine.Machine
	Changed() <-chan struct{}
}

// Options configures a Monitor.
type Options struct {
	Source Source
	// Config is the first configuration; see [Monitor.Configure].
	Config *config.NodeConfig
	// GPUs are polled and watched; none for a replayed machine.
	GPUs devgpu.Pollers
	// PollInterval is how often, such as DefaultPollInterval.
	PollInterval time.Duration
	// Log gets changes.
	Log *slog.Logger
}

// Monitor keeps the health of a node's devices. Its methods may be called from
// any goroutine, and never wait for hardware.
type Monitor struct {
	options  Options
	snapshot atomic.Pointer[Snapshot]
	// pollNow and timerNow activate the loops of Run.
	changed, pollNow, timerNow notify.Signal
	codes                      *prometheus.CounterVec

	// mu guards what follows, and serializes publishing.
	mu      sync.Mutex
	tracker *tracker
	next    time.Time
	logged  map[report]time.Time
}

// New returns a monitor. The machine that Source has now is taken at once.
func New(o Options) *Monitor {
	m := &Monitor{
		options: o, changed: notify.New(), pollNow: notify.New(), timerNow: notify.New(),
		tracker: newTracker(o.Config.Health),
		logged:  map[report]time.Time{}, codes: newCodes(),
	}
	m.snapshot.Store(&Snapshot{})
	m.apply(m.scanned)
	return m
}

// Snapshot returns the current health. It is never nil.
func (m *Monitor) Snapshot() *Snapshot { return m.snapshot.Load() }

// Changed receives when Snapshot differs from what it was: health or machine.
// It has one reader, and several changes may come as one.
func (m *Monitor) Changed() <-chan struct{} { return m.changed }

// Configure takes the configuration that counts from now on.
func (m *Monitor) Configure(c *config.NodeConfig) {
	m.apply(func(time.Time) {
		if !reflect.DeepEqual(c.Health, m.tracker.config) {
			m.tracker.configure(c.Health)
		}
	})
}

// OnEvent takes what a driver reported. The new snapshot is there when it
// returns.
func (m *Monitor) OnEvent(e devgpu.Event) {
	m.apply(func(now time.Time) {
		code, poll := m.tracker.event(now, e)
		if poll {
			m.pollNow.Notify()
		}
		m.report(now, e.GPU, code)
	})
}

// Reset takes that a GPU may have been reset: its driver was not in use for a time.
func (m *Monitor) Reset(uuid string) {
	m.apply(func(now time.Time) { m.tracker.gpu(uuid).away = now })
}

// Run polls and watches the GPUs, follows the source and lets time pass until
// ctx ends, and then returns nil.
func (m *Monitor) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { m.pollLoop(ctx) })
	events := make(chan devgpu.Event)
	wg.Go(func() { m.options.GPUs.Watch(ctx, m.options.Log, events) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.options.Source.Changed():
			m.apply(m.scanned)
		case e := <-events:
			m.OnEvent(e)
		case <-m.timerNow:
		case <-timer.C:
			m.apply(func(time.Time) {})
		}
		m.mu.Lock()
		next := m.next
		m.mu.Unlock()
		if next.IsZero() {
			timer.Stop()
			continue
		}
		timer.Reset(max(time.Until(next), 0))
	}
}

func (m *Monitor) pollLoop(ctx context.Context) {
	ticker := time.NewTicker(m.options.PollInterval)
	defer ticker.Stop()
	for {
		pulses := m.options.GPUs.Poll(ctx, m.options.Source.Machine())
		if ctx.Err() != nil {
			// Cut short: GPUs that were not waited for look silent.
			return
		}
		m.apply(func(time.Time) { m.tracker.pulses(pulses) })
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-m.pollNow:
		}
	}
}

func (m *Monitor) scanned(time.Time) {
	if scan := m.options.Source.Machine(); scan != nil {
		m.tracker.see(scan)
	}
}

// apply changes the tracker, and publishes what differs.
func (m *Monitor) apply(change func(now time.Time)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	change(now)
	snapshot, next := m.tracker.update(now)
	if !next.Equal(m.next) {
		m.next = next
		m.timerNow.Notify()
	}
	if !snapshot.equal(m.snapshot.Load()) {
		m.snapshot.Store(snapshot)
		m.changed.Notify()
	}
}

// report is one kind of error of one GPU.
type report struct {
	gpu, kind string
	number    uint64
}

// reportEvery is how often one kind of error is logged: a process can make
// hundreds.
const reportEvery = time.Minute

// report logs and counts an error; mu is held.
func (m *Monitor) report(now time.Time, gpu string, code devgpu.Code) {
	if code.Number > 0 {
		m.codes.WithLabelValues(gpu, code.Kind, strconv.FormatUint(code.Number, 10), string(code.Severity)).Inc()
	}
	if code.Kind == "" || code.Severity == devgpu.Ignore {
		return
	}
	key := report{gpu, code.Kind, code.Number}
	if last, ok := m.logged[key]; ok && now.Sub(last) < reportEvery {
		return
	}
	m.logged[key] = now
	log := m.options.Log.Info
	if code.Severity == devgpu.Fatal {
		log = m.options.Log.Warn
	}
	log("driver reported an error", "gpu", gpu, "error", code.String(), "severity", code.Severity)
}

// newCodes counts error reports. Catalogs have some hundred numbers.
func newCodes() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "heddle_gpu_health_codes_total",
		Help: "Error reports of the GPU driver, by GPU, kind and number and what they mean for the GPU.",
	}, []string{"gpu", "kind", "code", "policy"})
}

func unhealthyDesc() *prometheus.Desc {
	return prometheus.NewDesc("heddle_device_unhealthy",
		"1 for every device that is unhealthy, by UUID or identity, and why.",
		[]string{"kind", "device", "cause"}, nil)
}

// Describe implements [prometheus.Collector].
func (m *Monitor) Describe(c chan<- *prometheus.Desc) {
	m.codes.Describe(c)
	c <- unhealthyDesc()
}

// Collect implements [prometheus.Collector].
func (m *Monitor) Collect(c chan<- prometheus.Metric) {
	m.codes.Collect(c)
	s := m.Snapshot()
	for kind, states := range map[string]map[string]State{"gpu": s.GPUs, "hca": s.HCAs} {
		for id, state := range states {
			if !state.Healthy {
				c <- prometheus.MustNewConstMetric(unhealthyDesc(), prometheus.GaugeValue, 1, kind, id, string(state.Cause))
			}
		}
	}
}
