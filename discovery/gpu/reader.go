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
	// the driver and how many GPUs there are. ErrAbsent without a driver.
	Open() (machine.Driver, int, error)
	// GPU reads the GPU at an index. ErrLost if it no longer answers, with its UUID
	// and PCI address if those could be read; [Incomplete] beside a GPU that could
	// be read but for some parts.
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
	// ErrRestart means that this process can never read the driver: it has the
	// library of another one. The process must end and be started again.
	ErrRestart = errors.New("this process must start again")
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
	// answers by PCI address.
	known map[int]machine.GPU
	seen  map[string]sighting
	// bus has the addresses of the last read, if any.
	bus    []string
	isRead bool
	// reopen asks for a new session at the next read.
	reopen bool
	// fatal is an ErrRestart.
	fatal error
}

type session struct {
	driver machine.Driver
	count  int
	// kept means that an old session could not be ended yet.
	kept bool
}

// NewReader returns a reader; timeout 0 is ScanTimeout.
func NewReader(s Source, timeout time.Duration) *Reader {
	return &Reader{
		vendor: s.Vendor, library: s.Library, timeout: cmp.Or(timeout, ScanTimeout),
		known: map[int]machine.GPU{}, seen: map[string]sighting{},
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

// Err is why this process must end and be started again (ErrRestart); nil while
// it need not. What was read before stays valid: held devices and running pods
// have nothing to do with the process.
func (r *Reader) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fatal
}

// Read asks every GPU, and adds what it found to a machine that has its PCI
// functions. It returns within the timeout, or with ctx; a GPU that
// hangs costs that time once, and none in later reads until it has answered.
//
// When GPUs came or went on the bus, a new session begins, since a driver may
// count its GPUs once per session. A GPU that was known and no longer answers, or
// lost its driver, keeps its identity and is Lost as long as the bus has
// it; one without a UUID so far has no identity and is skipped.
func (r *Reader) Read(ctx context.Context, m *machine.Machine) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bus := r.vendor.OnBus(m.PCI)
	r.reopen = r.reopen || r.isRead && !slices.Equal(bus, r.bus)
	r.bus, r.isRead = bus, true
	found, probe := r.read(ctx, m)
	answered := map[string]bool{}
	for _, g := range found {
		answered[g.PCI] = true
	}
	for _, address := range bus {
		if answered[address] {
			continue
		}
		reason := cmp.Or(probe.Reason, "on the PCI bus and unknown to the driver")
		last, known := r.seen[address]
		if !known {
			m.Skipped = append(m.Skipped, machine.Skipped{Name: address, Reason: "GPU: " + reason})
			continue
		}
		g := last.gpu
		g.Health = machine.Health{State: machine.Lost, Reason: reason}
		found = append(found, g)
		answered[address] = true
	}
	// GPUs that left the bus were removed from the machine.
	maps.DeleteFunc(r.seen, func(address string, _ sighting) bool { return !answered[address] })
	describe(m, found)
	driver := r.last.driver
	driver.Unidentified = max(0, r.last.count-len(found))
	m.AddDriver(driver)
	m.GPUs = append(m.GPUs, found...)
	m.Probes = append(m.Probes, probe)
}

// read asks the driver alone, for the GPUs with a known identity, healthy or
// not.
func (r *Reader) read(ctx context.Context, m *machine.Machine) ([]machine.GPU, machine.Probe) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	reopen := r.reopen && !r.gpus.Busy()
	s, err := r.session.Do(ctx, func() (session, error) { return r.open(reopen) })
	if errors.Is(err, ErrRestart) {
		r.fatal = err
	}
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
	answers := r.gpus.Ask(ctx, indices, r.library.GPU)
	r.locate(answers)
	return r.collect(m, answers)
}

// locate gives a GPU that has reported its UUID alone the bus address that no other has, if it is the
// only one of both.
func (r *Reader) locate(answers []bounded.Answer[machine.GPU]) {
	free := slices.Clone(r.bus)
	var without []int
	for i := range answers {
		g := answers[i].Value
		if g.UUID == "" && g.PCI == "" {
			g = r.known[i]
		}
		if g.UUID != "" && g.PCI == "" {
			without = append(without, i)
		}
		free = slices.DeleteFunc(free, func(address string) bool { return address == g.PCI })
	}
	if len(without) == 1 && len(free) == 1 {
		answers[without[0]].Value.PCI = free[0]
	}
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
		if errors.Is(a.Err, bounded.ErrTimeout) {
			probe = r.probe(machine.ProbeTimeout, fmt.Sprintf("GPU %d did not answer in %s", i, r.timeout))
		}
		gpu, ok := r.condition(i, a)
		var incomplete IncompleteError
		switch {
		case errors.As(a.Err, &incomplete):
			m.Skipped = append(m.Skipped, machine.Skipped{Name: gpu.PCI, Reason: incomplete.Error()})
		case !ok:
			name := fmt.Sprintf("%s GPU %d", r.vendor.Probe, i)
			m.Skipped = append(m.Skipped, machine.Skipped{Name: name, Reason: r.reason(a.Err)})
			continue
		}
		found = append(found, gpu)
	}
	return found, probe
}

// condition returns the GPU of an answer; false if its identity is not known.
func (r *Reader) condition(i int, a bounded.Answer[machine.GPU]) (machine.GPU, bool) {
	gpu := a.Value
	last, seen := r.seen[gpu.PCI]
	if !seen || last.gpu.UUID != gpu.UUID {
		last, seen = sighting{gpu: gpu}, false
	}
	var incomplete IncompleteError
	if a.Err == nil || errors.As(a.Err, &incomplete) {
		r.seen[gpu.PCI] = incomplete.complete(&gpu, last)
		r.known[i] = gpu
		return gpu, true
	}
	known := gpu.UUID != "" && gpu.PCI != ""
	switch {
	case !known:
		gpu, known = r.known[i]
	case seen:
		gpu = last.gpu
	default:
		r.seen[gpu.PCI] = last
	}
	gpu.Health = machine.Health{State: machine.Unhealthy, Reason: r.reason(a.Err)}
	if errors.Is(a.Err, ErrLost) {
		gpu.Health.State = machine.Lost
	}
	return gpu, known
}

// describe gives GPUs that were lost before they reported their product what
// others of their model report: those with the same PCI device number.
func describe(m *machine.Machine, found []machine.GPU) {
	for i := range found {
		g, f := &found[i], m.Function(found[i].PCI)
		if g.Product != "" || f == nil || f.Device == "" {
			continue
		}
		for j := range found {
			other := m.Function(found[j].PCI)
			if found[j].Product == "" || other == nil || other.Vendor != f.Vendor || other.Device != f.Device {
				continue
			}
			like := &found[j]
			g.Product, g.MemoryMiB = like.Product, like.MemoryMiB
			g.Architecture, g.ComputeCapability = like.Architecture, like.ComputeCapability
			break
		}
	}
}

func (r *Reader) reason(err error) string {
	if errors.Is(err, bounded.ErrTimeout) {
		return fmt.Sprintf("the driver did not answer in %s", r.timeout)
	}
	return err.Error()
}

// stale returns the last good read, when the driver as a whole does not answer.
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
