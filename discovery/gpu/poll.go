package gpu

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/bounded"
)

// Telemetry has the reports of a vendor's driver between scans, about the GPUs
// that a [Reader] has read in the open session. The [Library] of a vendor
// without it is scanned only.
type Telemetry interface {
	// WaitEvent returns the next event, or ErrNoEvent after at most about the
	// time given. ErrAbsent if no session is open; after any other error the
	// next call starts again.
	WaitEvent(wait time.Duration) (Event, error)
	// Pulse touches a GPU, so that a lost one is found, and asks for the
	// recovery action. ErrAbsent if the open session has not read it. It may
	// block for ever.
	Pulse(uuid string) (Action, error)
	// Usage returns who uses a GPU, with the samples after a time of the
	// driver's, or fails as Pulse does.
	Usage(uuid string, after uint64) (Usage, error)
}

// Action is a driver's recovery action for a GPU, in words; ActionUnknown is a
// driver that does not report it, ActionNone one that wants nothing.
type Action string

// The actions that mean the same for every vendor.
const (
	ActionUnknown Action = ""
	ActionNone    Action = "none"
)

// Pulse is a GPU's answer to a short question.
type Pulse struct {
	// GPU is the UUID.
	GPU string
	// Asked is when the question was put.
	Asked time.Time
	// Err is nil if the GPU answered, [ErrLost] if it no longer can,
	// [ErrSilent] if it did not in time or still owes an earlier answer.
	Err error
	// Action is the driver's recovery action; ActionUnknown unless it answered.
	Action Action
}

// Poller asks all GPUs of a vendor whether they are alive and who uses them: a
// few calls each, where a Reader makes dozens. It never makes a second call of
// a kind on a GPU before the first has returned. Poll has one caller at a time,
// and so has Usage.
type Poller struct {
	telemetry Telemetry
	pulses    bounded.Group[string, Action]
	usages    bounded.Group[string, Usage]
	// seen is the newest sample's time.
	seen map[string]uint64
}

// NewPoller returns a poller.
func NewPoller(t Telemetry) *Poller { return &Poller{telemetry: t, seen: map[string]uint64{}} }

// Poll asks every GPU of a machine at once, and returns within [PollTimeout], or
// with ctx, sorted by UUID. A GPU that no open session has read is left out. m
// may be nil.
func (p *Poller) Poll(ctx context.Context, m *machine.Machine) []Pulse {
	asked := time.Now()
	var pulses []Pulse
	for _, a := range ask(ctx, &p.pulses, m, p.telemetry.Pulse) {
		pulses = append(pulses, Pulse{GPU: a.uuid, Asked: asked, Action: a.Value, Err: a.Err})
	}
	return pulses
}

// Usage asks every GPU of a machine at once who uses it, and returns as Poll
// does.
func (p *Poller) Usage(ctx context.Context, m *machine.Machine) []Usage {
	// A call may return long after the poll, and reads nothing that changes.
	seen := maps.Clone(p.seen)
	var all []Usage
	usage := func(uuid string) (Usage, error) { return p.telemetry.Usage(uuid, seen[uuid]) }
	for _, a := range ask(ctx, &p.usages, m, usage) {
		u := a.Value
		if a.Err != nil {
			u = Usage{Err: a.Err}
		}
		u.GPU, u.Samples = a.uuid, newest(u.Samples)
		all = append(all, u)
		for _, s := range u.Samples {
			p.seen[u.GPU] = max(p.seen[u.GPU], s.At)
		}
	}
	return all
}

// answer is the answer of one GPU.
type answer[T any] struct {
	uuid string
	bounded.Answer[T]
}

func ask[T any](
	ctx context.Context, g *bounded.Group[string, T], m *machine.Machine, f func(uuid string) (T, error),
) []answer[T] {
	if m == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, PollTimeout)
	defer cancel()
	uuids := make([]string, len(m.GPUs))
	for i := range m.GPUs {
		uuids[i] = m.GPUs[i].UUID
	}
	slices.Sort(uuids)
	var answers []answer[T]
	for i, a := range g.Ask(ctx, uuids, f) {
		if !errors.Is(a.Err, ErrAbsent) {
			answers = append(answers, answer[T]{uuids[i], a})
		}
	}
	return answers
}

// Pollers ask the GPUs of all vendors of a node. None, as for a replayed
// machine, asks nothing.
type Pollers []*Poller

// Poll is [Poller.Poll] of all.
func (p Pollers) Poll(ctx context.Context, m *machine.Machine) (all []Pulse) {
	for _, one := range p {
		all = append(all, one.Poll(ctx, m)...)
	}
	return all
}

// Usage is [Poller.Usage] of all.
func (p Pollers) Usage(ctx context.Context, m *machine.Machine) (all []Usage) {
	for _, one := range p {
		all = append(all, one.Usage(ctx, m)...)
	}
	return all
}

// Watch is [Watch] of all; it returns when ctx has ended.
func (p Pollers) Watch(ctx context.Context, logger *slog.Logger, events chan<- Event) {
	var wg sync.WaitGroup
	for _, one := range p {
		wg.Go(func() { Watch(ctx, one.telemetry, logger, events) })
	}
	wg.Wait()
}

// Process is a process with a context on a GPU.
type Process struct {
	// PID is of the PID namespace that the driver counts in: the host's, where
	// this process is in it.
	PID int
	// Bytes of the GPU's memory; -1 if the driver does not report them.
	Bytes   int64
	Passive bool // It has no compute context, and may only watch.
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
	// Err is why nothing is known: [ErrLost], [ErrSilent] or the driver's error.
	Err       error
	Processes []Process
	// Samples are since the last reading, one for each process that did
	// something, sorted by PID. SamplesErr is why there are none.
	Samples    []Sample
	SamplesErr error
}

// newest is each process's last sample, by PID.
func newest(samples []Sample) []Sample {
	// The newest first, which Compact keeps.
	slices.SortStableFunc(samples, func(a, b Sample) int {
		return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(b.At, a.At))
	})
	return slices.CompactFunc(samples, func(a, b Sample) bool { return a.PID == b.PID })
}
