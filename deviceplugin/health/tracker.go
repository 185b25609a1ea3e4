package health

import (
	"math"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
)

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
	}
	for _, h := range t.hcas {
		h.present = false
	}
	usual := usualRates(m)
	for i, id := range m.HCAIDs() {
		if t.hcas[id] == nil {
			t.hcas[id] = &hca{}
		}
		t.hcas[id].see(&m.HCAs[i], usual, &t.config)
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

// pulses takes the answers to a poll.
func (t *tracker) pulses(all []devgpu.Pulse) {
	for _, p := range all {
		t.gpu(p.GPU).poll(p)
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
	code.Severity = severityOf(&t.config.Codes, code)
	if e.GPU != "" {
		t.gpu(e.GPU).event(now, code, &t.config)
	}
	return code, code.Severity == devgpu.Fatal || code.Severity == devgpu.Driver
}

// severityOf returns the configured severity of a report, else the severity in the vendor's catalog.
func severityOf(configured *config.HealthCodes, code devgpu.Code) devgpu.Severity {
	has := func(list []int) bool { return slices.Contains(list, int(min(code.Number, math.MaxInt))) }
	switch {
	case code.Kind != config.CodeKind:
	case has(configured.Fatal):
		return devgpu.Fatal
	case has(configured.Ignore):
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
