package mode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/plugin"
)

const slots = 4

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
	pods    map[string]*tenant
	serial  int
	admits  int
	refused int
	broken  bool
}

type tenant struct {
	mode      config.Mode
	id        string
	bound     string // the card by binding, of a share
	recorded  bool
	accounted bool
}

func newModel(t *testing.T, seed uint64, cards int) *model {
	t.Helper()
	m := &model{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), machine: &machine.Machine{}, dir: t.TempDir(),
		lists: map[config.Mode]map[string]bool{}, healthy: map[config.Mode]map[string]bool{}, pods: map[string]*tenant{},
	}
	for i := range cards {
		m.machine.GPUs = append(m.machine.GPUs, machine.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i})
	}
	m.configure()
	return m
}

// configure draws what is shared, and what a switch does.
func (m *model) configure() {
	c := config.Default()
	if m.draw(4) > 0 {
		c.Mode = config.ModeSGPU
		for i := range m.machine.GPUs {
			if m.draw(2) == 0 {
				c.SGPU.GPUs = append(c.SGPU.GPUs, config.Card(strconv.Itoa(i)))
			}
		}
	}
	c.SGPU.ModeSwitch = []config.ModeSwitch{cordon, wait}[m.draw(2)]
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

func pause(d time.Duration) { <-time.After(d) }

// boot starts a Tracker on what is on disk, and the loop of an agent around it.
func (m *model) boot() {
	ctx, cancel := context.WithCancel(context.Background())
	tracker := New(Options{Kubelet: m, StateDir: m.dir})
	var wg sync.WaitGroup
	wake := make(chan struct{}, 1)
	m.mu.Lock()
	m.tracker = tracker
	m.stream++
	m.mu.Unlock()
	wg.Go(func() { _ = tracker.Run(ctx) })
	wg.Go(func() {
		for ctx.Err() == nil {
			m.round(tracker)
			select {
			case <-ctx.Done():
			case <-tracker.Changed():
			case <-wake:
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
	told := tracker.Round(m.machine, c)
	pause(m.chance(20 * time.Millisecond))
	for _, mode := range []config.Mode{native, shared} {
		list := map[string]bool{}
		for i := range m.machine.GPUs {
			g := &m.machine.GPUs[i]
			is, against := tracker.offer(g, mode)
			for n := range slots {
				if is && (mode == shared || n == 0) {
					list[idOf(g.UUID, mode, n)] = against == ""
				}
			}
		}
		m.send(mode, list)
	}
	told()
}

func idOf(uuid string, mode config.Mode, n int) string {
	if mode == native {
		return uuid
	}
	return uuid + slot + strconv.Itoa(n)
}

// send gives the kubelet a list, some time later.
func (m *model) send(mode config.Mode, list map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if maps.Equal(list, m.lists[mode]) && m.healthy[mode] != nil {
		return
	}
	m.lists[mode] = list
	stream := m.stream
	late := time.Duration(m.random.Int64N(int64(30 * time.Millisecond)))
	m.wg.Go(func() {
		pause(late)
		m.mu.Lock()
		defer m.mu.Unlock()
		// The stream sends what is the list by then.
		if stream != m.stream {
			return
		}
		m.healthy[mode] = map[string]bool{}
		for id, well := range m.lists[mode] {
			if well {
				m.healthy[mode][id] = true
			}
		}
		m.checkLocked()
	})
}

// checkLocked is what must hold at any time.
func (m *model) checkLocked() {
	card := func(id string) string { uuid, _, _ := strings.Cut(id, slot); return uuid }
	for id := range m.healthy[shared] {
		if m.healthy[native][card(id)] {
			m.t.Errorf("%s is offered twice", card(id))
		}
	}
	in := map[string]config.Mode{}
	for _, p := range m.pods {
		for _, uuid := range []string{card(p.id), cmp.Or(p.bound, card(p.id))} {
			if (p.recorded || p.accounted) && in[uuid] != "" && in[uuid] != p.mode {
				m.t.Errorf("%s is held in both modes", uuid)
			}
			if p.recorded || p.accounted {
				in[uuid] = p.mode
			}
		}
	}
}

// Offered implements [Kubelet].
func (m *model) Offered(context.Context) ([]Device, error) {
	pause(m.chance(5 * time.Millisecond))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken || m.random.IntN(20) == 0 {
		return nil, errors.New("rejected by rate limit")
	}
	var all []Device
	for mode, ids := range m.healthy {
		for id := range ids {
			all = append(all, Device{m.resource(mode), id})
		}
	}
	return all, nil
}

// Held implements [Kubelet].
func (m *model) Held(context.Context) ([]Held, error) {
	pause(m.chance(5 * time.Millisecond))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken || m.random.IntN(20) == 0 {
		return nil, errors.New("the kubelet has stopped")
	}
	var all []Held
	for name, p := range m.pods {
		if p.recorded || p.accounted {
			all = append(all, Held{Device: Device{m.resource(p.mode), p.id}, By: name})
		}
		if p.bound != "" {
			all = append(all, Held{Device: Device{m.resource(p.mode), p.bound + slot}, By: name})
		}
	}
	return all, nil
}

// Renew implements [Kubelet].
func (m *model) Renew() {}

func (m *model) resource(mode config.Mode) string {
	if mode == native {
		return m.config.Resources.GPU
	}
	return m.config.Resources.SGPU
}

// errDied: Allocate and PreStart end with the process that serves them.
var errDied = errors.New("the plugin has died")

// backing is a resource behind the gate.
type backing struct {
	plugin.Resource
	model   *model
	tracker *Tracker
	mode    config.Mode
	pod     *tenant
}

func (b *backing) Allocate(context.Context, []string) (*v1beta1.ContainerAllocateResponse, error) {
	pause(b.model.chance(time.Second)) // A slow disk.
	b.model.mu.Lock()
	defer b.model.mu.Unlock()
	if b.tracker != b.model.tracker {
		return nil, errDied
	}
	b.pod.recorded = true
	b.model.checkLocked()
	return &v1beta1.ContainerAllocateResponse{}, nil
}

func (b *backing) PreStart(context.Context, []string) error {
	var open []string
	for i := range b.model.machine.GPUs {
		g := &b.model.machine.GPUs[i]
		if is, against := b.tracker.Shared(g); is && against == "" {
			open = append(open, g.UUID)
		}
	}
	pause(b.model.chance(2 * time.Second))
	b.model.mu.Lock()
	defer b.model.mu.Unlock()
	switch {
	case b.tracker != b.model.tracker:
		return errDied
	case len(open) == 0:
		return errors.New("no card")
	}
	b.pod.bound = open[b.model.random.IntN(len(open))]
	b.model.checkLocked()
	return nil
}

// admit is a pod's life.
func (m *model) admit() {
	m.mu.Lock()
	m.serial++
	name := "ns/" + strconv.Itoa(m.serial)
	p := &tenant{mode: []config.Mode{native, shared}[m.random.IntN(2)]}
	free := maps.Clone(m.healthy[p.mode])
	for _, q := range m.pods {
		delete(free, q.id)
	}
	ids := slices.Sorted(maps.Keys(free))
	if len(ids) == 0 {
		m.mu.Unlock()
		return
	}
	p.id = ids[m.random.IntN(len(ids))]
	m.pods[name] = p
	tracker := m.tracker
	hesitates := time.Duration(m.random.Int64N(int64(300 * time.Millisecond)))
	if m.random.IntN(50) == 0 {
		hesitates = 5 * time.Second // So that the gate has something to do.
	}
	m.mu.Unlock()
	m.wg.Go(func() {
		defer func() {
			m.mu.Lock()
			delete(m.pods, name)
			m.mu.Unlock()
		}()
		pause(hesitates)
		m.mu.Lock()
		gone := tracker != m.tracker
		m.mu.Unlock()
		gate := tracker.Gate(p.mode, &backing{model: m, tracker: tracker, mode: p.mode, pod: p})
		if gone {
			return
		}
		if _, err := gate.Allocate(context.Background(), []string{p.id}); err != nil {
			m.mu.Lock()
			defer m.mu.Unlock()
			if !errors.Is(err, errDied) {
				m.refused++
			}
			return
		}
		pause(m.chance(50 * time.Millisecond))
		m.mu.Lock()
		p.accounted = true
		m.admits++
		m.mu.Unlock()
		if p.mode == shared {
			_ = gate.PreStart(context.Background(), []string{p.id})
		}
		pause(m.chance(4 * time.Second))
	})
}

// restart is another kubelet: it knows its pods and no devices until the
// resources' streams are open again.
func (m *model) restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stream++
	m.healthy, m.lists = map[config.Mode]map[string]bool{}, map[config.Mode]map[string]bool{}
}

// TestThousandSwitches changes what is shared a thousand times, under load,
// with restarts of the kubelet and of the Tracker.
func TestThousandSwitches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(t, 20261121, 8)
		m.boot()
		for range 1000 {
			m.configure()
			signal(m.tracker.changed)
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
		m.settled()
		m.stop()
		m.wg.Wait()
		t.Logf("%d pods admitted, %d refused by the gate", m.admits, m.refused)
		if m.admits < 1000 || m.refused == 0 {
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

// settled is what must hold when all is quiet: every card is offered as it is
// configured, whole.
func (m *model) settled() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.machine.GPUs {
		g := &m.machine.GPUs[i]
		want := map[config.Mode]int{Wanted(m.config, g): 1}
		if want[shared] > 0 {
			want[shared] = slots
		}
		got := map[config.Mode]int{}
		for mode, ids := range m.healthy {
			for id := range ids {
				if uuid, _, _ := strings.Cut(id, slot); uuid == g.UUID {
					got[mode]++
				}
			}
		}
		if !maps.Equal(want, got) {
			m.t.Errorf("%s is offered as %v, configured as %v: %+v", g.UUID, got, want, m.tracker.cards[g.UUID])
		}
	}
}
