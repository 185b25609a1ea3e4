package health

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
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
	// Poll asks the GPUs, in bounded time: nvml.Pinger.Poll. Nil is none, as
	// for a replayed machine.
	Poll func(context.Context) []nvml.Pulse
	// PollInterval is how often; 0 is DefaultPollInterval.
	PollInterval time.Duration
	// Recorder hears of changes; nil is nobody. It may take its time.
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
	// pollNow and timerNow wake the loops of Run.
	pollNow, timerNow notify.Signal
	notices           chan NodeEvent
	xids              *prometheus.CounterVec

	// mu guards what follows, and makes publishing take turns.
	mu      sync.Mutex
	tracker *tracker
	config  *config.NodeConfig
	next    time.Time
	waiting []notify.Signal
	logged  map[report]time.Time
}

// New returns a monitor. The machine that Source has now is judged at once.
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
		notices: make(chan NodeEvent, maxNotices), config: o.Config(), logged: map[report]time.Time{}, xids: newXIDs(),
	}
	m.tracker = newTracker(m.config.Health)
	m.snapshot.Store(&Snapshot{})
	if o.Registerer != nil {
		o.Registerer.MustRegister(m.xids, unhealthy{m})
	}
	m.apply(m.scanned)
	return m
}

// Snapshot is the health of now. It is never nil.
func (m *Monitor) Snapshot() *Snapshot { return m.snapshot.Load() }

// Subscribe returns a channel that receives when Snapshot differs from what it
// was: health or machine. Signals that nobody takes become one. Every consumer
// has its own channel, and keeps it.
func (m *Monitor) Subscribe() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := notify.New()
	m.waiting = append(m.waiting, c)
	return c
}

// Tell takes an event, for nvml.Watch. The new snapshot is there when it
// returns.
func (m *Monitor) Tell(e nvml.Event) {
	m.apply(func(now time.Time) {
		policy, poll := m.tracker.event(now, e)
		if poll {
			m.pollNow.Notify()
		}
		m.report(now, e, policy)
	})
}

// Run polls, watches the source and lets time pass until ctx ends, and then
// returns nil.
func (m *Monitor) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { m.pollLoop(ctx) })
	wg.Go(func() { m.recordLoop(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.options.Source.Changed():
			m.apply(m.scanned)
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
		var pulses []nvml.Pulse
		if m.options.Poll != nil {
			pulses = m.options.Poll(ctx)
		}
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

// apply changes the tracker, judges, and publishes what differs.
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
	snapshot, next := m.tracker.judge(now)
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
	m.announce(changes(last, snapshot))
}

// report is one kind of error of one GPU.
type report struct {
	gpu string
	xid uint64
}

// reportEvery is how often one kind of error is logged: a process can make
// hundreds.
const reportEvery = time.Minute

// report tells the log and the counter of an error; mu is held.
func (m *Monitor) report(now time.Time, e nvml.Event, p Policy) {
	if e.Kind == nvml.EventXID {
		m.xids.WithLabelValues(e.GPU, strconv.FormatUint(e.XID, 10), string(p)).Inc()
	}
	if e.Kind == nvml.EventInterrupted || p == Ignore {
		return
	}
	key := report{e.GPU, e.XID}
	if last, ok := m.logged[key]; ok && now.Sub(last) < reportEvery {
		return
	}
	m.logged[key] = now
	text := "double-bit ECC error"
	if e.Kind == nvml.EventXID {
		text = XIDText(e.XID)
	}
	if p == Fatal {
		m.log.Warn("the driver reports an error", "gpu", e.GPU, "error", text, "policy", p)
		return
	}
	m.log.Info("the driver reports an error", "gpu", e.GPU, "error", text, "policy", p)
}

func (c Change) String() string {
	if c.To.Healthy {
		return fmt.Sprintf("%s is healthy again", c.Name)
	}
	return fmt.Sprintf("%s is unhealthy: %s", c.Name, c.To.Reason)
}
