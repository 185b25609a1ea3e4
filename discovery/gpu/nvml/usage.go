package nvml

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/discovery/bounded"
)

// Process is a process with a CUDA context on a GPU.
type Process struct {
	// PID is of the PID namespace that the driver counts in: the host's, where
	// this process is in it.
	PID int
	// Bytes of the GPU's memory; -1 if the driver does not tell.
	Bytes int64
}

// Sample is how busy a process kept a GPU.
type Sample struct {
	PID int
	// At is the driver's time, in microseconds.
	At uint64
	// SM is the percentage of the time in which a kernel of it ran; -1 for
	// what is not a percentage.
	SM int
}

// Usage is who uses a GPU.
type Usage struct {
	// GPU is the UUID.
	GPU string
	// Err is why nothing is known: [ErrLost], [ErrSilent] or what NVML says.
	Err       error
	Processes []Process
	// Samples are since the last reading, one for each process that did
	// something, sorted by PID. SamplesErr is why there are none.
	Samples    []Sample
	SamplesErr error
}

// UsageLibrary asks single GPUs who uses them. [System]'s library does.
type UsageLibrary interface {
	// Known is as in [PulseLibrary].
	Known() []string
	// Processes are those with CUDA contexts. It may block for ever.
	Processes(uuid string) ([]Process, error)
	// Samples are those after a time of the driver's. It may block for ever.
	Samples(uuid string, after uint64) ([]Sample, error)
}

// Meter asks all GPUs who uses them. It never makes a second call on a GPU
// before the first has returned.
type Meter struct {
	library UsageLibrary
	timeout time.Duration

	// mu guards what follows and makes readings take turns.
	mu    sync.Mutex
	calls map[string]*bounded.Call[Usage]
	// seen is the newest sample's time.
	seen map[string]uint64
}

// NewMeter returns a meter; timeout 0 is DefaultPulseTimeout.
func NewMeter(library UsageLibrary, timeout time.Duration) *Meter {
	if timeout <= 0 {
		timeout = DefaultPulseTimeout
	}
	return &Meter{
		library: library, timeout: timeout, calls: map[string]*bounded.Call[Usage]{}, seen: map[string]uint64{},
	}
}

// Read asks every known GPU at once, and returns within the timeout, or with
// ctx, sorted by UUID. Without a driver there is nobody to ask.
func (m *Meter) Read(ctx context.Context) []Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	known := m.library.Known()
	slices.Sort(known)
	all := make([]Usage, len(known))
	waits := make([]func(context.Context) (Usage, error), len(known))
	for i, uuid := range known {
		if m.calls[uuid] == nil {
			m.calls[uuid] = &bounded.Call[Usage]{}
		}
		after := m.seen[uuid]
		waits[i] = m.calls[uuid].Start(func() (Usage, error) { return m.ask(uuid, after) })
	}
	for i, wait := range waits {
		u, err := wait(ctx)
		if err != nil {
			u = Usage{Err: err}
		}
		u.GPU = known[i]
		all[i] = u
		for _, s := range u.Samples {
			m.seen[u.GPU] = max(m.seen[u.GPU], s.At)
		}
	}
	// A session that ended meanwhile says nothing about its GPUs.
	return slices.DeleteFunc(all, func(u Usage) bool { return errors.Is(u.Err, ErrAbsent) })
}

// ask may run long after Read has returned, and writes nothing of the meter's.
func (m *Meter) ask(uuid string, after uint64) (Usage, error) {
	processes, err := m.library.Processes(uuid)
	if err != nil {
		return Usage{}, err
	}
	u := Usage{Processes: processes}
	samples, err := m.library.Samples(uuid, after)
	u.Samples, u.SamplesErr = newest(samples), err
	return u, nil
}

// newest is each process's last sample, by PID.
func newest(samples []Sample) []Sample {
	slices.SortStableFunc(samples, func(a, b Sample) int {
		if a.PID != b.PID {
			return a.PID - b.PID
		}
		// The newest first, which Compact keeps.
		switch {
		case a.At > b.At:
			return -1
		case a.At < b.At:
			return 1
		}
		return 0
	})
	return slices.CompactFunc(samples, func(a, b Sample) bool { return a.PID == b.PID })
}
