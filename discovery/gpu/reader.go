package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/bounded"
)

// Library reads one vendor's GPUs: through the vendor's library, or from sysfs.
// Calls may block for ever; a [Reader] never makes a second call on a GPU before
// the first has returned.
type Library interface {
	// Open starts a session with the driver unless there is one, and returns
	// the driver and how many GPUs there are. ErrAbsent if there is no driver.
	Open() (machine.Driver, int, error)
	// GPU reads the GPU at an index. ErrLost, with whatever identity could be
	// read, if it no longer answers; ErrIncomplete beside a GPU that could be read
	// but for a part, and is as healthy as it is without.
	GPU(index int) (machine.GPU, error)
	// Close ends the session, so that the next Open sees GPUs that came or
	// went, or a driver that was loaded again. It is never called while a call
	// of the Reader has not returned; calls of [Telemetry] it waits for, and
	// keeps the session with ErrBusy if they take too long.
	Close() error
}

var (
	// ErrAbsent means that there is nothing to ask: no library, no driver, or a
	// build without it. The text around it names which.
	ErrAbsent = errors.New("absent")
	// ErrLost means that a GPU is there and no longer answers.
	ErrLost = errors.New("lost")
	// ErrBusy means that a session was kept, because a call is still in it.
	ErrBusy = errors.New("a call has not returned")
	// ErrIncomplete means that a part of a GPU could not be read.
	ErrIncomplete = errors.New("incomplete")
	// ErrSilent means that a GPU has not answered in time.
	ErrSilent = bounded.ErrTimeout
)

// Reader reads all GPUs of a vendor, in parallel.
type Reader struct {
	vendor  *Vendor
	library Library
	timeout time.Duration

	// mu guards what follows, and serializes reads.
	mu sync.Mutex
	// session bounds Open and Close, gpus each GPU.
	session bounded.Call[session]
	gpus    bounded.Group[int, machine.GPU]
	last    session
	// known are the last good answers of this session by index, seen the last
	// identities by PCI address.
	known map[int]machine.GPU
	seen  map[string]machine.GPU
	// bus are the addresses of the last read, if there was one.
	bus    []string
	isRead bool
	// reopen asks for a new session at the next read.
	reopen bool
}

type session struct {
	driver machine.Driver
	count  int
	// kept means that an old session could not be ended yet.
	kept bool
}

// NewReader returns a reader; timeout 0 is bounded.DefaultTimeout.
func NewReader(s Source, timeout time.Duration) *Reader {
	return &Reader{
		vendor: s.Vendor, library: s.Library, timeout: cmp.Or(timeout, bounded.DefaultTimeout),
		known: map[int]machine.GPU{}, seen: map[string]machine.GPU{},
	}
}

// Close ends the session, within the reader's timeout. While a GPU hangs it
// does not, and returns an error: the call would return into an unmapped library.
func (r *Reader) Close(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gpus.Busy() {
		return fmt.Errorf("close %s: %w", r.vendor.Probe, ErrBusy)
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	_, err := r.session.Do(ctx, func() (session, error) { return session{}, r.library.Close() })
	return err
}

// Read asks every GPU, and adds what it found to a machine that has its PCI
// functions. It returns within the timeout, or with ctx; a GPU that
// hangs costs that time once, and none in later reads until it has answered.
//
// When GPUs came or went on the bus, a new session begins, since a driver may
// count its GPUs once per session. A GPU that was known and no longer answers, or
// whose driver went away, keeps its identity and is Lost as long as the bus has
// it; one whose UUID was never read has no identity and is skipped.
func (r *Reader) Read(ctx context.Context, m *machine.Machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bus, _ := r.vendor.OnBus(m.PCI)
	r.reopen = r.reopen || r.isRead && !slices.Equal(bus, r.bus)
	r.bus, r.isRead = bus, true
	found, probe := r.read(ctx, m)
	answered := map[string]bool{}
	for _, g := range found {
		answered[g.PCI] = true
		g.Health = machine.Health{}
		r.seen[g.PCI] = g
	}
	for _, address := range bus {
		if answered[address] {
			continue
		}
		reason := cmp.Or(probe.Reason, "on the PCI bus and unknown to the driver")
		g, known := r.seen[address]
		if !known {
			m.Skipped = append(m.Skipped, machine.Skipped{Name: address, Reason: "GPU: " + reason})
			continue
		}
		g.Health = machine.Health{State: machine.Lost, Reason: reason}
		found = append(found, g)
		answered[address] = true
	}
	// GPUs that left the bus were removed from the machine.
	maps.DeleteFunc(r.seen, func(address string, _ machine.GPU) bool { return !answered[address] })
	m.Driver = cmp.Or(m.Driver, r.last.driver)
	m.GPUs = append(m.GPUs, found...)
	m.Probes = append(m.Probes, probe)
}

// read asks the driver alone, for the GPUs whose identity is known, healthy or
// not.
func (r *Reader) read(ctx context.Context, m *machine.Machine) ([]machine.GPU, machine.Probe) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	reopen := r.reopen && !r.gpus.Busy()
	s, err := r.session.Do(ctx, func() (session, error) { return r.open(reopen) })
	switch {
	case errors.Is(err, ErrAbsent):
		r.reopen, r.last = true, session{}
		clear(r.known)
		return nil, r.probe(machine.ProbeAbsent, err.Error())
	case errors.Is(err, bounded.ErrTimeout):
		return r.stale(machine.ProbeTimeout, r.reason(err))
	case err != nil:
		// A driver that was unloaded answers an old session with errors.
		r.reopen = true
		return r.stale(machine.ProbeFailed, err.Error())
	}
	if reopen && !s.kept {
		r.reopen = false
		clear(r.known)
	}
	r.last = s
	indices := make([]int, s.count)
	for i := range indices {
		indices[i] = i
	}
	return r.collect(m, r.gpus.Ask(ctx, indices, r.library.GPU))
}

func (r *Reader) open(reopen bool) (session, error) {
	var kept bool
	if reopen {
		err := r.library.Close()
		if kept = errors.Is(err, ErrBusy); err != nil && !kept {
			return session{}, err
		}
	}
	driver, count, err := r.library.Open()
	return session{driver, count, kept}, err
}

// collect turns answers into GPUs: a good answer is remembered, a bad one is
// the remembered GPU with its condition.
func (r *Reader) collect(m *machine.Machine, answers []bounded.Answer[machine.GPU]) ([]machine.GPU, machine.Probe) {
	var found []machine.GPU
	probe := r.probe(machine.ProbeOK, "")
	for i, a := range answers {
		gpu, known := a.Value, true
		if errors.Is(a.Err, ErrIncomplete) {
			m.Skipped = append(m.Skipped, machine.Skipped{Name: gpu.PCI, Reason: a.Err.Error()})
			a.Err = nil
		}
		if a.Err != nil && gpu.UUID == "" {
			gpu, known = r.known[i]
		}
		switch {
		case a.Err == nil:
			r.known[i] = gpu
		case errors.Is(a.Err, ErrLost):
			gpu.Health = machine.Health{State: machine.Lost, Reason: a.Err.Error()}
		default:
			gpu.Health = machine.Health{State: machine.Unhealthy, Reason: r.reason(a.Err)}
		}
		if errors.Is(a.Err, bounded.ErrTimeout) {
			probe = r.probe(machine.ProbeTimeout, fmt.Sprintf("GPU %d did not answer in %s", i, r.timeout))
		}
		if !known {
			name := fmt.Sprintf("%s GPU %d", r.vendor.Probe, i)
			m.Skipped = append(m.Skipped, machine.Skipped{Name: name, Reason: r.reason(a.Err)})
			continue
		}
		found = append(found, gpu)
	}
	return found, probe
}

func (r *Reader) reason(err error) string {
	if errors.Is(err, bounded.ErrTimeout) {
		return fmt.Sprintf("the driver did not answer in %s", r.timeout)
	}
	return err.Error()
}

// stale is the last good read, when the driver as a whole does not answer.
func (r *Reader) stale(state machine.ProbeState, reason string) ([]machine.GPU, machine.Probe) {
	var found []machine.GPU
	for i := range r.last.count {
		if gpu, ok := r.known[i]; ok {
			gpu.Health = machine.Health{State: machine.Unhealthy, Reason: reason}
			found = append(found, gpu)
		}
	}
	return found, r.probe(state, reason)
}

func (r *Reader) probe(state machine.ProbeState, reason string) machine.Probe {
	return machine.Probe{Name: r.vendor.Probe, State: state, Reason: reason}
}
