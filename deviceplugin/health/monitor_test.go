package health

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/gpu/nvml"
	"github.com/heddle-dev/heddle/internal/notify"
)

// source is a machine that a test changes.
type source struct {
	machine atomic.Pointer[machine.Machine]
	changed notify.Signal
}

func newSource(m *machine.Machine) *source {
	s := &source{changed: notify.New()}
	s.machine.Store(m)
	return s
}

func (s *source) Machine() *machine.Machine { return s.machine.Load() }

func (s *source) Changed() <-chan struct{} { return s.changed }

func (s *source) set(m *machine.Machine) {
	s.machine.Store(m)
	s.changed.Notify()
}

// driver answers polls, and sends events to the one that waits.
type driver struct {
	mu     sync.Mutex
	action devgpu.Action
	err    error
	events chan devgpu.Event
	// slow is how long a GPU takes to answer a poll.
	slow time.Duration
}

func (d *driver) Pulse(string) (devgpu.Action, error) {
	<-time.After(d.slow)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.action, d.err
}

func (d *driver) Usage(string, uint64) (devgpu.Usage, error) { return devgpu.Usage{}, nil }

func (d *driver) pollers() devgpu.Pollers { return devgpu.Pollers{devgpu.NewPoller(d)} }

// xid is a report of NVIDIA's driver.
func xid(number uint64) devgpu.Event {
	codes := nvml.Vendor().Codes
	return devgpu.Event{GPU: "GPU-0", Code: codes.Code(number)}
}

func (d *driver) set(action devgpu.Action, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.action, d.err = action, err
}

func (d *driver) WaitEvent(wait time.Duration) (devgpu.Event, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case e := <-d.events:
		return e, nil
	case <-timer.C:
		return devgpu.Event{}, devgpu.ErrNoEvent
	}
}

// newMonitor fills in what a test does not care for.
func newMonitor(o Options) *Monitor {
	c := config.Default()
	o.Config, o.PollInterval, o.Log = &c, cmp.Or(o.PollInterval, DefaultPollInterval), slog.New(slog.DiscardHandler)
	return New(o)
}

// start runs a monitor until the test ends.
func start(t *testing.T, o Options) *Monitor {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	m := newMonitor(o)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		pass(devgpu.EventWait) // The wait that Watch left behind.
	})
	synctest.Wait()
	drain(m.Changed()) // The first scan.
	return m
}

// pass lets time pass in a bubble, and what it brings about happen.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func drain(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// An error report is in the snapshot, and its reader is notified, at once:
// no poll, no scan and no other GPU is waited for.
func TestXIDIsSeenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// A poll takes almost its whole time.
		slow := devgpu.PollTimeout - time.Millisecond
		d := &driver{action: devgpu.ActionNone, events: make(chan devgpu.Event), slow: slow}
		m := start(t, Options{Source: newSource(gpus(machine.Healthy, machine.Healthy)), GPUs: d.pollers()})
		began := time.Now()
		d.events <- xid(79)
		<-m.Changed()
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("took %s", took)
		}
		s := m.Snapshot()
		if s.GPU("GPU-0").Healthy || s.GPU("GPU-0").Cause != nvml.XID || !s.GPU("GPU-1").Healthy {
			t.Errorf("%+v", s.GPUs)
		}
	})
}

func TestLostGPUIsFoundByThePoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &driver{action: devgpu.ActionNone}
		m := start(t, Options{Source: newSource(gpus(machine.Healthy)), GPUs: d.pollers()})
		changed := m.Changed()
		began := time.Now()
		d.set("", devgpu.ErrLost)
		<-changed
		if took := time.Since(began); took > 5*time.Second || m.Snapshot().GPU("GPU-0").Cause != Lost {
			t.Errorf("after %s: %+v", took, m.Snapshot().GPU("GPU-0"))
		}
		d.set(devgpu.ActionNone, nil)
		<-changed // The reason states that it has recovered.
		answered := time.Now()
		<-changed
		if took := time.Since(answered); took != 30*time.Second || !m.Snapshot().GPU("GPU-0").Healthy {
			t.Errorf("fit after %s of answers: %+v", took, m.Snapshot().GPU("GPU-0"))
		}
	})
}

// A driver that reports no recovery action does not report a reset; that it was not
// in use for a time is enough.
func TestResetForgetsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &driver{action: devgpu.ActionUnknown}
		m := start(t, Options{Source: newSource(gpus(machine.Healthy)), GPUs: d.pollers()})
		m.OnEvent(xid(79))
		pass(time.Minute)
		if m.Snapshot().GPU("GPU-0").Healthy {
			t.Error("healthy although nothing was reset")
		}
		m.Reset("GPU-0")
		pass(31 * time.Second)
		if s := m.Snapshot().GPU("GPU-0"); !s.Healthy {
			t.Errorf("31 s after a reset: %+v", s)
		}
	})
}

// Time passes without scans and polls: a link that stays down is down in time.
func TestDeadlinesNeedNoScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource(ports(active))
		m := start(t, Options{Source: src, PollInterval: time.Hour})
		changed := m.Changed()
		src.set(ports(down))
		began := time.Now()
		<-changed // The machine changed.
		<-changed
		if took := time.Since(began); took != 10*time.Second || m.Snapshot().HCA("0000:40:00.0").Cause != PortDown {
			t.Errorf("after %s: %+v", took, m.Snapshot().HCA("0000:40:00.0"))
		}
		if m.Snapshot().Machine != src.Machine() {
			t.Error("the snapshot is of another machine")
		}
	})
}

func TestNothingIsReportedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &driver{action: devgpu.ActionNone, events: make(chan devgpu.Event)}
		m := start(t, Options{Source: newSource(gpus(machine.Healthy)), GPUs: d.pollers()})
		changed := m.Changed()
		pass(time.Hour)
		if drain(changed) {
			t.Error("notified of an hour in which nothing happened")
		}
	})
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &driver{action: devgpu.ActionNone, events: make(chan devgpu.Event)}
		whole := gpus(machine.Healthy)
		whole.HCAs = ports(active, active, active).HCAs
		whole.HCAs[1].Role = machine.RoleStorage
		src := newSource(whole)
		m := start(t, Options{Source: src, GPUs: d.pollers()})
		c, last := config.Default(), &Snapshot{Machine: whole}
		var got []string
		note := func() {
			now := m.Snapshot()
			for _, e := range Events(last, now, &c) {
				got = append(got, e.Reason+": "+e.Message)
			}
			last = now
		}
		note()
		d.events <- xid(31)
		d.events <- xid(79)
		pass(0)
		note()
		cut := gpus(machine.Healthy)
		cut.HCAs = ports(down, down, active).HCAs
		cut.HCAs[1].Role = machine.RoleStorage
		src.set(cut)
		pass(time.Minute)
		note()
		src.set(whole)
		pass(time.Minute)
		note()
		want := []string{
			"DeviceUnhealthy: GPU 0 (0000:10:00.0, GPU-0) is unhealthy: XID 79, the GPU has fallen off the bus",
			"DeviceRecovered: GPU 0 (0000:10:00.0, GPU-0) is healthy again",
			"DeviceUnhealthy: mlx5_0 (0000:40:00.0) is unhealthy: port 1 is DOWN (Polling)",
			"DeviceRecovered: mlx5_0 (0000:40:00.0) is healthy again",
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestConfigurationIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := start(t, Options{Source: newSource(ports(slow, active, active))})
		if m.Snapshot().HCA("0000:40:00.0").Healthy {
			t.Fatal("a slow HCA is healthy")
		}
		other := config.Default()
		other.Health.Disable = []config.HealthCheck{config.CheckRate}
		m.Configure(&other, nil)
		<-m.Changed()
		if !m.Snapshot().HCA("0000:40:00.0").Healthy {
			t.Error("rates are not checked any more, and the HCA is unhealthy")
		}
	})
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	m := newMonitor(Options{Source: newSource(gpus(machine.Healthy, machine.Lost))})
	registry.MustRegister(m)
	for range 2 {
		m.OnEvent(xid(94))
	}
	m.OnEvent(xid(109))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			var labels []string
			for _, l := range metric.Label {
				labels = append(labels, l.GetValue())
			}
			got[family.GetName()+" "+strings.Join(labels, " ")] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue()
		}
	}
	want := map[string]float64{
		"heddle_device_unhealthy XID GPU-0 gpu": 1, "heddle_device_unhealthy Lost GPU-1 gpu": 1,
		"heddle_gpu_health_codes_total 94 GPU-0 XID application": 2, "heddle_gpu_health_codes_total 109 GPU-0 XID fatal": 1,
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("cause, device, kind; code, GPU, kind, policy (-want +got):\n%s", diff)
	}
}

// Readers, events, polls and scans at once, for the race detector.
func TestConcurrency(t *testing.T) {
	src := newSource(gpus(machine.Healthy))
	d := &driver{action: devgpu.ActionNone}
	m := newMonitor(Options{Source: src, GPUs: d.pollers(), PollInterval: time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	for _, number := range []uint64{13, 31, 43, 94} {
		wg.Go(func() {
			for ctx.Err() == nil {
				m.OnEvent(xid(number))
				src.set(gpus(machine.Healthy, machine.Lost))
				if s := m.Snapshot(); !s.GPU("GPU-0").Healthy {
					t.Errorf("unhealthy after XID %d: %s", number, s.GPU("GPU-0").Reason)
					return
				}
			}
		})
	}
	wg.Wait()
}
