package gpu

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/discovery/bounded"
)

// Telemetry is what a vendor's driver reports between scans, about the GPUs
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

// Action is what a driver wants done about a GPU, in words; ActionUnknown is a
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
	// Action is what the driver wants done; ActionUnknown unless it answered.
	Action Action
}

// Poller asks all GPUs of a vendor whether they are alive and who uses them: a
// few calls each, where a Reader makes dozens. It never makes a second call of
// a kind on a GPU before the first has returned.
type Poller struct {
	telemetry Telemetry
	timeout   time.Duration

	// pulseMu guards pulses, usageMu usages and seen; each makes its polls take
	// turns.
	pulseMu, usageMu sync.Mutex
	pulses           bounded.Group[string, Action]
	usages           bounded.Group[string, Usage]
	// seen is the newest sample's time.
	seen map[string]uint64
}

// DefaultPollTimeout bounds one poll of all GPUs.
const DefaultPollTimeout = 2 * time.Second

// NewPoller returns a poller; timeout 0 is DefaultPollTimeout.
func NewPoller(t Telemetry, timeout time.Duration) *Poller {
	if timeout <= 0 {
		timeout = DefaultPollTimeout
	}
	return &Poller{telemetry: t, timeout: timeout, seen: map[string]uint64{}}
}

// Poll asks every GPU of a machine at once, and returns within the timeout, or
// with ctx, sorted by UUID. A GPU that no open session has read is left out. m
// may be nil.
func (p *Poller) Poll(ctx context.Context, m *machine.Machine) []Pulse {
	p.pulseMu.Lock()
	defer p.pulseMu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	known, asked := uuids(m), time.Now()
	pulses := make([]Pulse, len(known))
	for i, answer := range p.pulses.Ask(ctx, known, p.telemetry.Pulse) {
		pulses[i] = Pulse{GPU: known[i], Asked: asked, Action: answer.Value, Err: answer.Err}
	}
	return slices.DeleteFunc(pulses, func(q Pulse) bool { return errors.Is(q.Err, ErrAbsent) })
}

func uuids(m *machine.Machine) []string {
	if m == nil {
		return nil
	}
	list := make([]string, len(m.GPUs))
	for i := range m.GPUs {
		list[i] = m.GPUs[i].UUID
	}
	slices.Sort(list)
	return list
}

// Usage asks every GPU of a machine at once who uses it, and returns as Poll
// does.
func (p *Poller) Usage(ctx context.Context, m *machine.Machine) []Usage {
	p.usageMu.Lock()
	defer p.usageMu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	known := uuids(m)
	all := make([]Usage, len(known))
	// A call may return long after the poll, and reads nothing that changes.
	seen := make(map[string]uint64, len(known))
	for _, uuid := range known {
		seen[uuid] = p.seen[uuid]
	}
	ask := func(uuid string) (Usage, error) { return p.telemetry.Usage(uuid, seen[uuid]) }
	for i, answer := range p.usages.Ask(ctx, known, ask) {
		u := answer.Value
		if answer.Err != nil {
			u = Usage{Err: answer.Err}
		}
		u.GPU, u.Samples = known[i], newest(u.Samples)
		all[i] = u
		for _, s := range u.Samples {
			p.seen[u.GPU] = max(p.seen[u.GPU], s.At)
		}
	}
	return slices.DeleteFunc(all, func(u Usage) bool { return errors.Is(u.Err, ErrAbsent) })
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
