package gpumode

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

const slots = 4

var modes = []config.Mode{native, shared, config.ModeClaims}

// model is a node in the ways of test/kubelet, in virtual time: lists reach the
// kubelet late and in order, it chooses a device long before it calls Allocate,
// it accounts for it later still, and it restarts. The real sockets are in
// deviceplugin/agent's tests.
type model struct {
	t       *testing.T
	random  *rand.Rand
	machine *machine.Machine
	dir     string

	mu      sync.Mutex // guards all below; never held across a pause
	config  *config.NodeConfig
	tracker *Tracker
	stop    func()
	wg      sync.WaitGroup
	// lists are what the resources name, healthy what the kubelet took of it.
	lists   map[config.Mode]map[string]bool
	healthy map[config.Mode]map[string]bool
	// stream counts the connections; what an older one sends is not taken.
	stream int
	// pods hold one device each; record is what Allocate gave out and the
	// kubelet has not accounted for.
	pods map[string]*consumer
	// offered is the mode in which the resources have each GPU, flying the calls of
	// Allocate in flight.
	offered  map[string]GPU
	flying   map[*consumer]bool
	serial   int
	admits   int
	rejected int
	broken   bool
}

type consumer struct {
	mode      config.Mode
	id        string
	bound     string // the GPU by binding, of a share
	recorded  bool
	accounted bool
}

func newModel(t *testing.T, seed uint64, gpus int) *model {
	t.Helper()
	m := &model{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), machine: &machine.Machine{}, dir: t.TempDir(),
		lists: map[config.Mode]map[string]bool{}, healthy: map[config.Mode]map[string]bool{}, pods: map[string]*consumer{},
		flying: map[*consumer]bool{},
	}
	for i := range gpus {
		m.machine.GPUs = append(m.machine.GPUs, machine.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i})
	}
	m.configure()
	return m
}

// configure draws what is shared, and what a switch does.
func (m *model) configure() {
	c := config.Default()
	var some []config.GPURef
	for i := range m.machine.GPUs {
		if m.draw(2) == 0 {
			some = append(some, config.GPURef(strconv.Itoa(i)))
		}
	}
	switch m.draw(5) {
	case 0:
	case 1, 2:
		c.Mode, c.Claims.GPUs = config.ModeClaims, some
	default:
		c.Mode, c.SGPU.GPUs = config.ModeSGPU, some
		if len(some) > 1 && m.draw(2) == 0 {
			c.Claims.GPUs = some[1:]
		}
	}
	m.mu.Lock()
	m.config = &c
	m.mu.Unlock()
}

// draw is a number below n.
func (m *model) draw(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.random.IntN(n)
}

func (m *model) chance(most time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(m.random.Int64N(int64(most)))
}

// boot starts a Tracker on what is on disk, and the loop of an agent around it.
func (m *model) boot() {
	ctx, cancel := context.WithCancel(context.Background())
	tracker := New(m.dir, slog.New(slog.DiscardHandler))
	var wg sync.WaitGroup
	changed := make(chan struct{}, 1)
	m.mu.Lock()
	m.tracker = tracker
	m.stream++
	m.mu.Unlock()
	wg.Go(func() { follow(ctx, tracker, m.observe) })
	wg.Go(func() {
		for ctx.Err() == nil {
			m.round(tracker)
			select {
			case <-ctx.Done():
			case <-tracker.Changed():
			case <-changed:
			case <-time.After(time.Second):
			}
		}
	})
	m.stop = func() {
		cancel()
		wg.Wait()
		// PluginDisconnected: all is unhealthy.
		m.mu.Lock()
		m.stream++
		m.healthy, m.lists = map[config.Mode]map[string]bool{}, map[config.Mode]map[string]bool{}
		m.mu.Unlock()
	}
}

func (m *model) round(tracker *Tracker) {
	m.mu.Lock()
	c := m.config
	m.mu.Unlock()
	tracker.Round(m.machine, c)
	shown := tracker.GPUs()
	slow := 20 * time.Millisecond
	if m.draw(4) == 0 {
		slow = time.Second // Calls reach the resources before they follow.
	}
	pause(m.chance(slow))
	m.mu.Lock()
	m.offered = map[string]GPU{}
	for _, g := range shown {
		m.offered[g.UUID] = g
	}
	m.mu.Unlock()
	for _, mode := range modes {
		list := map[string]bool{}
		for i := range m.machine.GPUs {
			g := &m.machine.GPUs[i]
			for n := range slots {
				if shown[i].Offered == mode && (mode == shared || n == 0) {
					list[idOf(g.UUID, mode, n)] = shown[i].Unavailable == ""
				}
			}
		}
		m.send(mode, list)
	}
	tracker.Published(shown)
}

// TestSwitches changes what is shared 5,000 times, under load, with restarts of the
// kubelet and of the Tracker. At no time is a GPU offered or held in two modes.
func TestSwitches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(t, 20261121, 8)
		m.boot()
		for range 5000 {
			m.configure()
			m.tracker.changed.Notify()
			for range m.draw(8) {
				m.admit()
				pause(m.chance(400 * time.Millisecond))
			}
			switch m.draw(12) {
			case 0:
				m.stop()
				m.boot()
			case 1:
				m.restart()
			case 2:
				m.mu.Lock()
				m.broken = !m.broken
				m.mu.Unlock()
			}
		}
		m.mu.Lock()
		m.broken = false
		m.mu.Unlock()
		m.drained()
		pause(time.Minute)
		m.checkQuiet()
		m.stop()
		m.wg.Wait()
		t.Logf("%d pods admitted, %d rejected by Allocate", m.admits, m.rejected)
		if m.admits < 4500 || m.rejected == 0 {
			t.Error("too little happened")
		}
	})
}

// drained waits until no pod is left.
func (m *model) drained() {
	for {
		m.mu.Lock()
		n := len(m.pods)
		m.mu.Unlock()
		if n == 0 {
			return
		}
		pause(100 * time.Millisecond)
	}
}

// checkQuiet checks what must hold when all is quiet: every GPU is offered as it is
// configured, in full.
func (m *model) checkQuiet() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.machine.GPUs {
		g := &m.machine.GPUs[i]
		want := map[config.Mode]int{inventory.Wanted(m.config, g): 1}
		if want[shared] > 0 {
			want[shared] = slots
		}
		got := map[config.Mode]int{}
		for mode, ids := range m.healthy {
			for id := range ids {
				if gpu(id) == g.UUID {
					got[mode]++
				}
			}
		}
		if !maps.Equal(want, got) {
			m.t.Errorf("%s is offered as %v, configured as %v: %+v", g.UUID, got, want, m.tracker.gpus[g.UUID])
		}
	}
}
