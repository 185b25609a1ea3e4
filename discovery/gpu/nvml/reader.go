package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/bounded"
)

// Reader reads all GPUs, in parallel.
type Reader struct {
	library Library
	timeout time.Duration

	// mu guards what follows, and makes reads take turns.
	mu sync.Mutex
	// session bounds Open and Close, gpus each GPU.
	session bounded.Call[session]
	gpus    map[int]*bounded.Call[machine.GPU]
	known   map[int]machine.GPU
	last    session
	// reopen asks for a new session at the next read.
	reopen bool
}

type session struct {
	driver machine.Driver
	count  int
	// kept means that an old session could not be ended yet.
	kept bool
}

// Result is what one read found.
type Result struct {
	Driver machine.Driver
	// GPUs are those whose identity is known, healthy or not.
	GPUs []machine.GPU
	// Probe is the entry for Machine.Probes.
	Probe machine.Probe
	// Skipped are GPUs that were counted and never told who they are.
	Skipped []machine.Skipped
}

// NewReader returns a reader; timeout 0 is bounded.DefaultTimeout.
func NewReader(library Library, timeout time.Duration) *Reader {
	return &Reader{
		library: library, timeout: cmp.Or(timeout, bounded.DefaultTimeout),
		gpus: map[int]*bounded.Call[machine.GPU]{}, known: map[int]machine.GPU{},
	}
}

// Reopen makes the next read start a new session with the driver. NVML counts
// the GPUs once per session; call it when the PCI bus has changed.
func (r *Reader) Reopen() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reopen = true
}

// Close ends the session, within the reader's timeout. While a GPU hangs it
// does not, and says so: the call would return into an unmapped library.
func (r *Reader) Close(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.idle() {
		return errors.New("close NVML: a call has not returned")
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	_, err := r.session.Do(ctx, func() (session, error) { return session{}, r.library.Close() })
	return err
}

// Read asks every GPU. It returns within the timeout, or with ctx; a GPU that
// hangs costs that time once, and none in later reads until it has answered.
func (r *Reader) Read(ctx context.Context) Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	reopen := r.reopen && r.idle()
	s, err := r.session.Do(ctx, func() (session, error) { return r.open(reopen) })
	switch {
	case errors.Is(err, ErrAbsent):
		r.reopen = true
		r.known = map[int]machine.GPU{}
		return Result{Probe: probe(machine.ProbeAbsent, err.Error())}
	case errors.Is(err, bounded.ErrTimeout):
		return r.stale(machine.ProbeTimeout, fmt.Sprintf("the driver did not answer in %s", r.timeout))
	case err != nil:
		// A driver that was unloaded answers an old session with errors.
		r.reopen = true
		return r.stale(machine.ProbeFailed, err.Error())
	}
	if reopen && !s.kept {
		r.reopen = false
		r.known = map[int]machine.GPU{}
	}
	r.last = s
	return r.collect(r.ask(ctx, s.count))
}

func (r *Reader) open(reopen bool) (session, error) {
	var kept bool
	if reopen {
		err := r.library.Close()
		if kept = errors.Is(err, errBusy); err != nil && !kept {
			return session{}, err
		}
	}
	driver, count, err := r.library.Open()
	return session{driver, count, kept}, err
}

func (r *Reader) idle() bool {
	for _, call := range r.gpus {
		if call.Busy() {
			return false
		}
	}
	return true
}

type answer struct {
	gpu machine.GPU
	err error
}

// ask reads every GPU at once.
func (r *Reader) ask(ctx context.Context, count int) []answer {
	waits := make([]func(context.Context) (machine.GPU, error), count)
	for i := range count {
		if r.gpus[i] == nil {
			r.gpus[i] = &bounded.Call[machine.GPU]{}
		}
		waits[i] = r.gpus[i].Start(func() (machine.GPU, error) { return r.library.GPU(i) })
	}
	answers := make([]answer, count)
	for i, wait := range waits {
		answers[i].gpu, answers[i].err = wait(ctx)
	}
	return answers
}

// collect turns answers into GPUs: a good answer is remembered, a bad one is
// the remembered GPU with its condition.
func (r *Reader) collect(answers []answer) Result {
	result := Result{Driver: r.last.driver, Probe: probe(machine.ProbeOK, "")}
	for i, a := range answers {
		gpu, known := a.gpu, true
		if a.err != nil && gpu.UUID == "" {
			gpu, known = r.known[i]
		}
		switch {
		case a.err == nil:
			r.known[i] = gpu
		case errors.Is(a.err, ErrLost):
			gpu.Health = machine.Health{State: machine.Lost, Reason: a.err.Error()}
		default:
			gpu.Health = machine.Health{State: machine.Unhealthy, Reason: r.reason(a.err)}
		}
		if errors.Is(a.err, bounded.ErrTimeout) {
			result.Probe = probe(machine.ProbeTimeout, fmt.Sprintf("GPU %d did not answer in %s", i, r.timeout))
		}
		if !known {
			name := fmt.Sprintf("nvml GPU %d", i)
			result.Skipped = append(result.Skipped, machine.Skipped{Name: name, Reason: r.reason(a.err)})
			continue
		}
		result.GPUs = append(result.GPUs, gpu)
	}
	return result
}

func (r *Reader) reason(err error) string {
	if errors.Is(err, bounded.ErrTimeout) {
		return fmt.Sprintf("NVML did not answer in %s", r.timeout)
	}
	return err.Error()
}

// stale is the last good read, when the driver as a whole does not answer.
func (r *Reader) stale(state machine.ProbeState, reason string) Result {
	result := Result{Driver: r.last.driver, Probe: probe(state, reason)}
	for i := range r.last.count {
		if gpu, ok := r.known[i]; ok {
			gpu.Health = machine.Health{State: machine.Unhealthy, Reason: reason}
			result.GPUs = append(result.GPUs, gpu)
		}
	}
	return result
}

func probe(state machine.ProbeState, reason string) machine.Probe {
	return machine.Probe{Name: "nvml", State: state, Reason: reason}
}
