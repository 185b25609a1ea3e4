package health

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
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
		logged:  map[report]time.Time{},
		// Catalogs have some hundred numbers.
		codes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_gpu_health_codes_total",
			Help: "Error reports of the GPU driver, by GPU, kind and number and what they mean for the GPU.",
		}, []string{"gpu", "kind", "code", "policy"}),
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

// Configure takes what counts from now on: the configuration, and what is on the GPUs that are not clean, by UUID.
func (m *Monitor) Configure(c *config.NodeConfig, dirty map[string]string) {
	m.apply(func(time.Time) {
		if !reflect.DeepEqual(c.Health, m.tracker.config) {
			m.tracker.configure(c.Health)
		}
		for uuid, g := range m.tracker.gpus {
			g.dirty = dirty[uuid]
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
		m.apply(func(time.Time) {
			for _, p := range pulses {
				m.tracker.gpu(p.GPU).poll(p)
			}
		})
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
			if !state.Healthy && state.Cause != Idle {
				c <- prometheus.MustNewConstMetric(unhealthyDesc(), prometheus.GaugeValue, 1, kind, id, string(state.Cause))
			}
		}
	}
}

// tracker is the state machine: it takes what is seen, each with its time, and
// gives snapshots. It has no clock and no goroutines.
type tracker struct {
	config  config.Health
	machine *machine.Machine
	gpus    map[string]*gpu
	hcas    map[string]*hca
}

func newTracker(h config.Health) *tracker {
	return &tracker{config: h, gpus: map[string]*gpu{}, hcas: map[string]*hca{}}
}

func (t *tracker) gpu(uuid string) *gpu {
	if t.gpus[uuid] == nil {
		t.gpus[uuid] = &gpu{}
	}
	return t.gpus[uuid]
}

// configure takes another configuration. Faults of HCAs are looked for again.
func (t *tracker) configure(h config.Health) {
	t.config = h
	if t.machine != nil {
		t.see(t.machine)
	}
}

// see takes a scan of the machine.
func (t *tracker) see(m *machine.Machine) {
	t.machine = m
	for _, g := range t.gpus {
		g.present = false
	}
	for i := range m.GPUs {
		g := t.gpu(m.GPUs[i].UUID)
		g.seen, g.present, g.scan, g.pci = true, true, m.GPUs[i].Health, m.GPUs[i].PCI
		g.state.Name = fmt.Sprintf("GPU %d (%s, %s)", m.GPUs[i].Index, g.pci, m.GPUs[i].UUID)
	}
	for _, h := range t.hcas {
		h.present = false
	}
	usual := usualRates(m)
	for i, id := range m.HCAIDs() {
		if t.hcas[id] == nil {
			t.hcas[id] = &hca{}
		}
		t.hcas[id].see(m, &m.HCAs[i], usual, &t.config)
	}
	t.forget()
}

// forget drops devices that went away on purpose: virtual functions, soft RDMA,
// and functions that were given to a virtual machine.
func (t *tracker) forget() {
	for uuid, g := range t.gpus {
		if f := t.machine.Function(g.pci); !g.present && f != nil && devgpu.Excuse(f) != "" {
			delete(t.gpus, uuid)
		}
	}
	for id, h := range t.hcas {
		if h.present {
			continue
		}
		f := t.machine.Function(h.pci)
		if h.transient || f != nil && f.PassedThrough() {
			delete(t.hcas, id)
		}
	}
}

// event takes an event and returns the report as it is configured, and whether
// the GPUs should be polled at once.
func (t *tracker) event(now time.Time, e devgpu.Event) (code devgpu.Code, poll bool) {
	code = e.Code
	switch {
	case e.Interrupted():
		return code, true
	case !t.config.Checks(checkOf(Cause(code.Kind))):
		code.Severity = devgpu.Ignore
		return code, false
	}
	code.Severity = severityOf(&t.config, code)
	if e.GPU != "" {
		t.gpu(e.GPU).event(now, code, &t.config)
	}
	return code, code.Severity == devgpu.Fatal || code.Severity == devgpu.Driver
}

// severityOf returns the configured severity of a report, else the severity in the vendor's catalog.
func severityOf(configured *config.Health, code devgpu.Code) devgpu.Severity {
	has := func(list []int) bool { return slices.Contains(list, int(min(code.Number, math.MaxInt))) }
	switch {
	case code.Kind != config.CodeKind:
	case has(configured.FatalXIDs):
		return devgpu.Fatal
	case has(configured.IgnoreXIDs):
		return devgpu.Ignore
	}
	return code.Severity
}

// update gives the health of all devices, and when it may change although
// nothing happens; zero is never.
func (t *tracker) update(now time.Time) (*Snapshot, time.Time) {
	s := &Snapshot{Machine: t.machine, GPUs: map[string]State{}, HCAs: map[string]State{}}
	var next time.Time
	sooner := func(due time.Time) {
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
	}
	for uuid, g := range t.gpus {
		if g.seen {
			sooner(g.update(now, &t.config))
			s.GPUs[uuid] = g.state
		}
	}
	for id, h := range t.hcas {
		sooner(h.update(now, &t.config))
		s.HCAs[id] = h.state
	}
	return s, next
}
