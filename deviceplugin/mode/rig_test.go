package mode

import (
	"context"
	"errors"
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

// Renew forgets doubtful pods.
func (k *kubelet) Renew() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.renewed++
	k.held = slices.DeleteFunc(slices.Clone(k.held), func(h Held) bool { return h.Doubtful })
}

func (k *kubelet) set(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

func (k *kubelet) Offered(context.Context) ([]Device, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	if k.down {
		return nil, errors.New("no socket")
	}
	return k.offered, nil
}

func (k *kubelet) Held(context.Context) ([]Held, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.down {
		return nil, errors.New("no socket")
	}
	return k.held, nil
}

func two() *machine.Machine {
	return &machine.Machine{GPUs: []machine.GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1}}}
}

func configured(mode config.Mode, how config.ModeSwitch, cards ...config.GPURef) *config.NodeConfig {
	c := config.Default()
	c.Mode, c.SGPU.ModeSwitch, c.SGPU.GPUs = mode, how, cards
	return &c
}

// start runs a Tracker in a bubble; stop waits for its end.
func start(t *testing.T, dir string, k *kubelet) (tracker *Tracker, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	tracker = New(Options{Kubelet: k, StateDir: dir})
	done := make(chan error, 1)
	go func() { done <- tracker.Run(ctx) }()
	return tracker, sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// round is an agent's: it tells the resources, and looks again as long as
// something changes.
func round(tracker *Tracker, m *machine.Machine, c *config.NodeConfig) {
	for {
		tracker.Round(m, c)()
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
		pause(poll / 2)
		synctest.Wait()
		round(tracker, m, c)
	}
}

func states(tracker *Tracker) []string {
	var all []string
	for _, c := range tracker.Cards() {
		text := string(c.Mode) + " of " + string(c.Wanted)
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
