package gpumode

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
)

const (
	gpus  = "nvidia.com/gpu"
	sgpus = "nvidia.com/sgpu"
)

// kubelet is one whose accounts a test sets.
type kubelet struct {
	mu      sync.Mutex
	offered []Device
	held    []Held
	down    bool
	asked   int
	renewed int
}

// renew forgets pods that may have ended.
func (k *kubelet) renew() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.renewed++
	k.held = slices.DeleteFunc(slices.Clone(k.held), func(h Held) bool { return h.Unverified })
}

func (k *kubelet) set(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

func (k *kubelet) observe() *Observation {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	if k.down {
		return &Observation{Err: errors.New("no socket")}
	}
	return &Observation{Asked: time.Now(), Offered: k.offered, Held: k.held}
}

// follow observes as an agent does, until ctx ends.
func follow(ctx context.Context, tracker *Tracker, observe func() *Observation, renew func()) {
	var next <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tracker.Pending():
		case <-next:
		}
		again, needed := tracker.Observe(observe())
		if needed {
			renew()
		}
		next = nil
		if again > 0 {
			next = time.After(again)
		}
	}
}

func two() *machine.Machine {
	return &machine.Machine{GPUs: []machine.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1}}}
}

func configured(mode config.Mode, gpus ...config.GPURef) *config.NodeConfig {
	c := config.Default()
	c.Mode, c.SGPU.GPUs = mode, gpus
	return &c
}

// start follows a Tracker in a bubble; stop waits for its end.
func start(t *testing.T, dir string, k *kubelet) (tracker *Tracker, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	tracker = New(dir, slog.New(slog.DiscardHandler))
	done := make(chan struct{})
	go func() {
		defer close(done)
		follow(ctx, tracker, k.observe, k.renew)
	}()
	return tracker, sync.OnceFunc(func() {
		cancel()
		<-done
	})
}

// round is an agent's: the resources' lists follow, as long as something
// changes.
func round(tracker *Tracker, m *machine.Machine, c *config.NodeConfig) {
	for {
		tracker.Round(m, c)
		tracker.Published(tracker.GPUs())
		synctest.Wait()
		select {
		case <-tracker.Changed():
		default:
			return
		}
	}
}

// later lets time pass for a Tracker whose agent follows it.
func later(tracker *Tracker, m *machine.Machine, c *config.NodeConfig, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		pause(every / 6)
		synctest.Wait()
		round(tracker, m, c)
	}
}

func states(tracker *Tracker) []string {
	var all []string
	for _, c := range tracker.GPUs() {
		text := c.Mode + " of " + c.Wanted
		if c.Until != "" {
			text += " until " + c.Until
		}
		if c.Cordoned {
			text += ", cordoned"
		}
		all = append(all, text)
	}
	return all
}

// offered reports whether a GPU is offered in a mode, and why no new pod gets it.
func offered(tracker *Tracker, g *machine.GPU, in config.Mode) (is bool, unavailable string) {
	for _, now := range tracker.GPUs() {
		if now.UUID == g.UUID && now.Offered == in {
			return true, now.Unavailable
		}
	}
	return false, ""
}

func want(t *testing.T, tracker *Tracker, what string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, states(tracker)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// samples are the metrics that are 1, with their GPU.
func samples(t *testing.T, tracker *Tracker) []string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(tracker)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			if metric.GetGauge().GetValue() == 1 {
				all = append(all, f.GetName()+" "+metric.GetLabel()[0].GetValue())
			}
		}
	}
	return all
}
