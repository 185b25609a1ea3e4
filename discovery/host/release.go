package host

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/internal/notify"
)

// Release is a release of the GPUs' drivers: while it lasts, a Host opens no
// session with them, and its machine keeps the GPUs that it has. The daemon sets
// it, the Host reads it, and notes whether it has a session. A nil Release never
// lasts.
type Release struct {
	// set wakes the Host up, closedChanged the daemon.
	set, closedChanged notify.Signal

	mu sync.Mutex // guards all below
	// known is false until the daemon has found out: until then nothing is scanned.
	known bool
	until time.Time
	// closed is true after the sessions were ended, until the next scan with one.
	// fault is why they could not be.
	closed bool
	fault  error
}

// NewRelease returns a release without a known state.
func NewRelease() *Release { return &Release{set: notify.New(), closedChanged: notify.New()} }

// Set notes until when the drivers are released; the zero time ends a release.
func (r *Release) Set(until time.Time) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known && r.until.Equal(until) {
		return
	}
	r.known, r.until = true, until
	r.set.Notify()
}

// Active reports whether the drivers are released, or still are to be.
func (r *Release) Active() bool { return r.left() > 0 }

// left returns how long the release still lasts.
func (r *Release) left() time.Duration {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(0, time.Until(r.until))
}

// Closed reports whether the Host has no session with the drivers and opens none,
// or why a session could not be ended.
func (r *Release) Closed() (bool, error) {
	if r == nil {
		return false, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed, r.fault
}

// ClosedChanged receives when what Closed returns has changed. It has one reader.
func (r *Release) ClosedChanged() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.closedChanged
}

// note takes how a scan has left the sessions; open is why one stays.
func (r *Release) note(released bool, open error) {
	closed := released && open == nil
	if !released {
		open = nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed != closed || (r.fault == nil) != (open == nil) {
		r.closedChanged.Notify()
	}
	r.closed, r.fault = closed, open
}

// isKnown reports whether the daemon has found out.
func (r *Release) isKnown() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known
}

// await returns when the daemon has found out, or ctx has ended.
func (r *Release) await(ctx context.Context) {
	for !r.isKnown() {
		select {
		case <-ctx.Done():
			return
		case <-r.set:
		}
	}
}

// ended returns a timer for the end of the release; nil without one.
func (r *Release) ended() <-chan time.Time {
	if left := r.left(); left > 0 {
		return time.After(left)
	}
	return nil
}

// keepGPUs gives a machine the GPUs that the last scan found.
func (h *Host) keepGPUs(m *machine.Machine) {
	last := cmp.Or(h.snapshot.Load(), h.options.Before, &machine.Machine{})
	m.Driver, m.OtherDrivers, m.GPUs = last.Driver, slices.Clone(last.OtherDrivers), slices.Clone(last.GPUs)
	for _, v := range h.vendors {
		m.Probes = append(m.Probes, machine.Probe{Name: v.Probe, State: machine.ProbeReleased, Reason: releasedReason})
	}
}

// releasedReason is why the driver of a machine was not asked.
const releasedReason = "the driver is released for maintenance"
