package gpumode

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/heddle-dev/heddle/api/claims"
	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
)

func pause(d time.Duration) { <-time.After(d) }

func idOf(uuid string, mode config.Mode, n int) string {
	if mode != shared {
		return uuid
	}
	return uuid + inventory.ReplicaSeparator + strconv.Itoa(n)
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

func gpu(id string) string { return inventory.DeviceOf(id) }

// checkLocked is what must hold at any time.
func (m *model) checkLocked() {
	offered := map[string]config.Mode{}
	for mode, ids := range m.healthy {
		for id := range ids {
			if in := offered[gpu(id)]; in != "" && in != mode {
				m.t.Errorf("%s is offered as %s and as %s", gpu(id), in, mode)
			}
			offered[gpu(id)] = mode
		}
	}
	in := map[string]config.Mode{}
	for _, p := range m.pods {
		for _, uuid := range []string{gpu(p.id), cmp.Or(p.bound, gpu(p.id))} {
			if (p.recorded || p.accounted) && in[uuid] != "" && in[uuid] != p.mode {
				m.t.Errorf("%s is held in two modes", uuid)
			}
			if p.recorded || p.accounted {
				in[uuid] = p.mode
			}
		}
	}
}

// observe asks the kubelet twice, and it answers as it likes.
func (m *model) observe() *Observation {
	o := &Observation{Asked: time.Now()}
	pause(m.chance(5 * time.Millisecond))
	m.mu.Lock()
	if m.broken || m.random.IntN(20) == 0 {
		o.Err = errors.New("rejected by rate limit")
	}
	for mode, ids := range m.healthy {
		for id := range ids {
			o.Offered = append(o.Offered, inventory.Held{Resource: m.resource(mode), ID: id})
		}
	}
	for p := range m.flying {
		o.Held = append(o.Held, inventory.Held{Resource: m.resource(p.mode), ID: p.id, Pod: "a call"})
	}
	m.mu.Unlock()
	pause(m.chance(5 * time.Millisecond))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken || m.random.IntN(20) == 0 {
		o.Err = errors.New("the kubelet has stopped")
	}
	for name, p := range m.pods {
		if p.recorded || p.accounted {
			o.Held = append(o.Held, inventory.Held{Resource: m.resource(p.mode), ID: p.id, Pod: name})
		}
		if p.bound != "" {
			o.Held = append(o.Held, inventory.Held{Resource: m.resource(p.mode), ID: p.bound + inventory.ReplicaSeparator, Pod: name})
		}
	}
	return o
}

func (m *model) resource(mode config.Mode) string {
	switch mode {
	case native:
		return m.config.Resources.GPU
	case shared:
		return m.config.Resources.SGPU
	default:
		return claims.Driver
	}
}

// allocate is a call of Allocate as the resources and the device state treat it: they
// reject a GPU that is in another mode, and record the others on a slow disk. It reports
// whether the call succeeded, and rejected whether that was for the mode.
func (m *model) allocate(tracker *Tracker, p *consumer) (ok, rejected bool) {
	m.mu.Lock()
	if tracker != m.tracker {
		m.mu.Unlock()
		return false, false
	}
	m.flying[p] = true
	g, known := m.offered[gpu(p.id)]
	m.mu.Unlock()
	if known && g.Offered == p.mode {
		pause(m.chance(time.Second))
		m.mu.Lock()
		p.recorded = tracker == m.tracker // Else the process that served it has ended.
		m.checkLocked()
		m.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.flying, p)
	return p.recorded, known && g.Offered != p.mode
}

// prepare is a call of PreStart, which takes a shared GPU that the device state has as
// available at the moment of the decision.
func (m *model) prepare(tracker *Tracker, p *consumer) {
	pause(m.chance(2 * time.Second))
	m.mu.Lock()
	defer m.mu.Unlock()
	var open []string
	for i := range m.machine.GPUs {
		if g := m.offered[m.machine.GPUs[i].UUID]; g.Offered == shared && g.Unavailable == "" {
			open = append(open, g.UUID)
		}
	}
	if tracker == m.tracker && len(open) > 0 {
		p.bound = open[m.random.IntN(len(open))]
		m.checkLocked()
	}
}

// admit runs a pod from its admission to its end.
func (m *model) admit() {
	m.mu.Lock()
	m.serial++
	name := "ns/" + strconv.Itoa(m.serial)
	p := &consumer{mode: modes[m.random.IntN(len(modes))]}
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
	if m.random.IntN(10) == 0 {
		hesitates = time.Duration(m.random.Int64N(int64(5 * time.Second))) // So that some are rejected.
	}
	m.mu.Unlock()
	m.wg.Go(func() {
		defer func() {
			m.mu.Lock()
			delete(m.pods, name)
			m.mu.Unlock()
		}()
		pause(hesitates)
		ok, rejected := m.allocate(tracker, p)
		if !ok {
			m.mu.Lock()
			defer m.mu.Unlock()
			if rejected {
				m.rejected++
			}
			return
		}
		pause(m.chance(50 * time.Millisecond))
		m.mu.Lock()
		p.accounted = true
		m.admits++
		m.mu.Unlock()
		if p.mode == shared {
			m.prepare(tracker, p)
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
