package nvml

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/discovery/bounded"
)

// Action is what the driver wants done about a GPU
// (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, drivers since R565).
type Action string

// The actions, nvmlDeviceGpuRecoveryAction_t. ActionUnknown is a driver that
// does not tell.
const (
	ActionUnknown       Action = ""
	ActionNone          Action = "none"
	ActionGPUReset      Action = "GPU reset"
	ActionNodeReboot    Action = "node reboot"
	ActionDrainP2P      Action = "drain of peer-to-peer traffic"
	ActionDrainAndReset Action = "drain and GPU reset"
	ActionRecoverIMEX   Action = "recovery of the IMEX domain"
	ActionBusReset      Action = "reset of the GPU's PCIe bus"
	ActionSystemReboot  Action = "system reboot"
)

// action translates NVML's number; what a newer driver asks for is still
// something that it asks for.
func action(n uint32) Action {
	known := []Action{
		ActionNone, ActionGPUReset, ActionNodeReboot, ActionDrainP2P, ActionDrainAndReset, ActionRecoverIMEX,
		ActionBusReset, ActionSystemReboot,
	}
	if uint64(n) < uint64(len(known)) {
		return known[n]
	}
	return Action("recovery action " + strconv.FormatUint(uint64(n), 10))
}

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

// ErrSilent means that a GPU has not answered in time.
var ErrSilent = bounded.ErrTimeout

// PulseLibrary asks single GPUs. [System]'s library does.
type PulseLibrary interface {
	// Known are the UUIDs of the GPUs that the reader has read in the open
	// session; none without one.
	Known() []string
	// Pulse touches a GPU, so that a lost one is found, and asks for the
	// recovery action. It may block for ever.
	Pulse(uuid string) (Action, error)
}

// Pinger asks all GPUs whether they are alive: a few calls each, where a
// Reader makes dozens. It never makes a second call on a GPU before the first
// has returned.
type Pinger struct {
	library PulseLibrary
	timeout time.Duration

	// mu guards calls and makes polls take turns.
	mu    sync.Mutex
	calls map[string]*bounded.Call[Action]
}

// DefaultPulseTimeout bounds one poll of all GPUs.
const DefaultPulseTimeout = 2 * time.Second

// NewPinger returns a pinger; timeout 0 is DefaultPulseTimeout.
func NewPinger(library PulseLibrary, timeout time.Duration) *Pinger {
	if timeout <= 0 {
		timeout = DefaultPulseTimeout
	}
	return &Pinger{library: library, timeout: timeout, calls: map[string]*bounded.Call[Action]{}}
}

// Poll asks every known GPU at once, and returns within the timeout, or with
// ctx, sorted by UUID. Without a driver there is nobody to ask.
func (p *Pinger) Poll(ctx context.Context) []Pulse {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	known := p.library.Known()
	slices.Sort(known)
	pulses := make([]Pulse, len(known))
	waits := make([]func(context.Context) (Action, error), len(known))
	for i, uuid := range known {
		if p.calls[uuid] == nil {
			p.calls[uuid] = &bounded.Call[Action]{}
		}
		pulses[i] = Pulse{GPU: uuid, Asked: time.Now()}
		waits[i] = p.calls[uuid].Start(func() (Action, error) { return p.library.Pulse(uuid) })
	}
	for i, wait := range waits {
		pulses[i].Action, pulses[i].Err = wait(ctx)
	}
	// A session that ended meanwhile says nothing about its GPUs.
	return slices.DeleteFunc(pulses, func(q Pulse) bool { return errors.Is(q.Err, ErrAbsent) })
}
