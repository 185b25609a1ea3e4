package health

import (
	"cmp"
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

// Source is where scans of the machine come from: host.Host, replay.Replay.
// Changed has one reader, which is the Monitor; others subscribe to that.
type Source interface {
	Machine() *machine.Machine
	Changed() <-chan struct{}
}

// Options are what a Monitor works with.
type Options struct {
	Source Source
	// Config is the configuration of now; it is asked at every poll and every
	// scan. Nil is the default.
	Config func() *config.NodeConfig
	// GPUs are polled and watched; none for a replayed machine.
	GPUs devgpu.Pollers
	// PollInterval is how often; 0 is DefaultPollInterval.
	PollInterval time.Duration
	// Recorder records changes; nil is none. It may take its time.
	Recorder Recorder
	// Registerer takes the metrics; nil is none.
	Registerer prometheus.Registerer
	// Log gets changes; nil discards.
	Log *slog.Logger
}

// Monitor keeps the health of a node's devices. Its methods may be called from
// any goroutine, and never wait for hardware.
type Monitor struct {
	options  Options
	log      *slog.Logger
	snapshot atomic.Pointer[Snapshot]
	// pollNow and timerNow activate the loops of Run.
	pollNow, timerNow notify.Signal
	events            chan NodeEvent
	codes             *prometheus.CounterVec

	// mu guards what follows, and serializes publishing.
	mu      sync.Mutex
	tracker *tracker
	config  *config.NodeConfig
	next    time.Time
	waiting []notify.Signal
	logged  map[report]time.Time
}

// New returns a monitor. The machine that Source has now is taken at once.
func New(o Options) *Monitor {
	o.PollInterval = cmp.Or(o.PollInterval, DefaultPollInterval)
	if o.Config == nil {
		c := config.Default()
		o.Config = func() *config.NodeConfig { return &c }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m := &Monitor{
		options: o, log: o.Log, pollNow: notify.New(), timerNow: notify.New(),
		events: make(chan NodeEvent, maxEvents), config: o.Config(), logged: map[report]time.Time{}, codes: newCodes(),
	}
	m.tracker = newTracker(m.config.Health)
	m.snapshot.Store(&Snapshot{})
	if o.Registerer != nil {
		o.Registerer.MustRegister(m.codes, unhealthy{m})
	}
	m.apply(m.scanned)
	return m
}

// Snapshot is the health of now. It is never nil.
func (m *Monitor) Snapshot() *Snapshot { return m.snapshot.Load() }

// Subscribe returns a channel that receives when Snapshot differs from what it
// was: health or machine. Several signals may come as one. Every consumer
// has its own channel, and keeps it.
func (m *Monitor) Subscribe() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := notify.New()
	m.waiting = append(m.waiting, c)
	return c
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

// Run polls and watches the GPUs, follows the source and lets time pass until
// ctx ends, and then returns nil.
func (m *Monitor) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { m.pollLoop(ctx) })
	wg.Go(func() { m.recordLoop(ctx) })
	events := make(chan devgpu.Event)
	wg.Go(func() { m.options.GPUs.Watch(ctx, m.log, events) })
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
	// Asked outside of mu: it may have locks of its own.
	c := m.options.Config()
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if c != nil && c != m.config {
		if !reflect.DeepEqual(c.Health, m.config.Health) {
			m.tracker.configure(c.Health)
		}
		m.config = c
	}
	change(now)
	snapshot, next := m.tracker.update(now)
	if !next.Equal(m.next) {
		m.next = next
		m.timerNow.Notify()
	}
	last := m.snapshot.Load()
	if snapshot.equal(last) {
		return
	}
	m.snapshot.Store(snapshot)
	for _, c := range m.waiting {
		c.Notify()
	}
	m.publish(changes(last, snapshot))
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
	if code.Severity == devgpu.Fatal {
		m.log.Warn("driver reported an error", "gpu", gpu, "error", code.String(), "severity", code.Severity)
		return
	}
	m.log.Info("driver reported an error", "gpu", gpu, "error", code.String(), "severity", code.Severity)
}

// newCodes counts error reports. Catalogs have some hundred numbers.
func newCodes() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "heddle_gpu_health_codes_total",
		Help: "Error reports of the GPU driver, by GPU, kind and number and what they mean for the GPU.",
	}, []string{"gpu", "kind", "code", "policy"})
}

// unhealthy collects the unhealthy devices of the present snapshot.
type unhealthy struct{ monitor *Monitor }

func unhealthyDesc() *prometheus.Desc {
	return prometheus.NewDesc("heddle_device_unhealthy",
		"1 for every device that is unhealthy, by UUID or identity, and why.",
		[]string{"kind", "device", "cause"}, nil)
}

// Describe implements prometheus.Collector.
func (unhealthy) Describe(c chan<- *prometheus.Desc) { c <- unhealthyDesc() }

// Collect implements prometheus.Collector.
func (u unhealthy) Collect(c chan<- prometheus.Metric) {
	s := u.monitor.Snapshot()
	for _, part := range []struct {
		kind   string
		states map[string]State
	}{{"gpu", s.GPUs}, {"hca", s.HCAs}} {
		for id, state := range part.states {
			if !state.Healthy {
				c <- prometheus.MustNewConstMetric(unhealthyDesc(), prometheus.GaugeValue, 1, part.kind, id, string(state.Cause))
			}
		}
	}
}
