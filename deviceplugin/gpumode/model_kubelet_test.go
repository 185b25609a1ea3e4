package gpumode

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/deviceplugin/replica"
	"github.com/heddle-dev/heddle/deviceplugin/server"
)

func pause(d time.Duration) { <-time.After(d) }

func idOf(uuid string, mode config.Mode, n int) string {
	if mode == native {
		return uuid
	}
	return uuid + replica.Separator + strconv.Itoa(n)
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
	gpu := func(id string) string { uuid, _, _ := strings.Cut(id, replica.Separator); return uuid }
	for id := range m.healthy[shared] {
		if m.healthy[native][gpu(id)] {
			m.t.Errorf("%s is offered twice", gpu(id))
		}
	}
	in := map[string]config.Mode{}
	for _, p := range m.pods {
		for _, uuid := range []string{gpu(p.id), cmp.Or(p.bound, gpu(p.id))} {
			if (p.recorded || p.accounted) && in[uuid] != "" && in[uuid] != p.mode {
				m.t.Errorf("%s is held in both modes", uuid)
			}
			if p.recorded || p.accounted {
				in[uuid] = p.mode
			}
		}
	}
}

// observe asks the kubelet twice, and it answers as it likes.
func (m *model) observe() *Observation {
	o := &Observation{}
	pause(m.chance(5 * time.Millisecond))
	m.mu.Lock()
	if m.broken || m.random.IntN(20) == 0 {
		o.Err = errors.New("rejected by rate limit")
	}
	for mode, ids := range m.healthy {
		for id := range ids {
			o.Offered = append(o.Offered, Device{m.resource(mode), id})
		}
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
			o.Held = append(o.Held, Held{Device: Device{m.resource(p.mode), p.id}, By: name})
		}
		if p.bound != "" {
			o.Held = append(o.Held, Held{Device: Device{m.resource(p.mode), p.bound + replica.Separator}, By: name})
		}
	}
	return o
}

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
	server.Resource
	model   *model
	tracker *Tracker
	mode    config.Mode
	pod     *consumer
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
		if is, reason := offered(b.tracker, g, shared); is && reason == "" {
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
		return errors.New("no GPU")
	}
	b.pod.bound = open[b.model.random.IntN(len(open))]
	b.model.checkLocked()
	return nil
}

// admit runs a pod from its admission to its end.
func (m *model) admit() {
	m.mu.Lock()
	m.serial++
	name := "ns/" + strconv.Itoa(m.serial)
	p := &consumer{mode: []config.Mode{native, shared}[m.random.IntN(2)]}
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
