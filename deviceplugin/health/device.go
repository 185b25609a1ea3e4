package health

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
)

// gpu is the state of one GPU.
type gpu struct {
	// seen means that a machine had it, present that the last one does.
	seen, present bool
	scan          machine.Health
	pci           string
	// pulse is the last answer to a poll.
	pulse devgpu.Pulse
	// silentSince is zero while it answers.
	silentSince time.Time
	// asked means that its driver has reported a recovery action.
	asked bool
	// latch is an error that holds until the GPU has recovered.
	latch latch
	dirty string // What has kept it from its next pod for too long.
	// last is the last fault.
	last fault
	// away is when it was last gone or lost.
	away time.Time
	// goodSince is since when it has no fault; zero if it has one.
	goodSince time.Time
	state     State
}

type latch struct {
	cause Cause
	text  string
	at    time.Time
}

func (l *latch) holds() bool { return l.cause != "" }

func (g *gpu) poll(p devgpu.Pulse) {
	// What the driver asked for stands until it answers something else.
	if p.Action == devgpu.ActionUnknown && g.pulse.Action != devgpu.ActionNone {
		p.Action = g.pulse.Action
	}
	g.pulse = p
	switch {
	case p.Err == nil:
		g.silentSince = time.Time{}
	case g.silentSince.IsZero():
		g.silentSince = p.Asked
	}
	g.asked = g.asked || p.Err == nil && p.Action != devgpu.ActionUnknown
}

// event takes an error of the GPU. The first one that holds gives the reason:
// what follows is mostly its consequence.
func (g *gpu) event(now time.Time, code devgpu.Code, h *config.Health) {
	severity := code.Severity
	if severity == devgpu.Driver && (!g.asked || !h.Checks(config.CheckRecovery)) {
		severity = devgpu.Fatal
	}
	if severity != devgpu.Fatal {
		return
	}
	if !g.latch.holds() {
		g.latch = latch{cause: Cause(code.Kind), text: code.String()}
	}
	g.latch.at = now
	g.goodSince = time.Time{}
}

// fault returns the GPU's current fault, apart from past errors.
func (g *gpu) fault(now time.Time, h *config.Health) (Cause, string) {
	lost := h.Checks(config.CheckLost)
	switch {
	case !g.present:
		return Gone, "it is not on the node any more"
	case lost && errors.Is(g.pulse.Err, devgpu.ErrLost):
		return Lost, "the driver has lost it: " + g.pulse.Err.Error()
	case lost && g.scan.State == machine.Lost:
		return Lost, "the driver has lost it: " + g.scan.Reason
	case g.scan.State == machine.Unhealthy && h.Checks(checkOfScan(g.scan.Cause)):
		return cmp.Or(Cause(g.scan.Cause), Failed), g.scan.Reason
	case lost && g.silent(now, h) && errors.Is(g.pulse.Err, devgpu.ErrSilent):
		return NotAnswering, fmt.Sprintf("the driver has not answered for %s", h.DownAfter)
	case lost && g.silent(now, h):
		return NotAnswering, fmt.Sprintf("the driver has failed for %s: %v", h.DownAfter, g.pulse.Err)
	case h.Checks(config.CheckRecovery) && g.pulse.Action != devgpu.ActionUnknown && g.pulse.Action != devgpu.ActionNone:
		return RecoveryAction, fmt.Sprintf("the driver asks for a %s", g.pulse.Action)
	case h.Checks(config.CheckDirty) && g.dirty != "":
		return Dirty, g.dirty
	}
	return "", ""
}

func (g *gpu) silent(now time.Time, h *config.Health) bool {
	return !g.silentSince.IsZero() && now.Sub(g.silentSince) >= h.DownAfter
}

// cleared reports whether an error of the past may be forgotten: the driver was
// asked after it and wants nothing, or, where it cannot be asked, the GPU or
// its driver went away and came back.
func (g *gpu) cleared(h *config.Health) bool {
	switch {
	case !g.latch.holds():
		return true
	case g.asked && h.Checks(config.CheckRecovery):
		return g.pulse.Action == devgpu.ActionNone && g.pulse.Asked.After(g.latch.at)
	}
	return g.away.After(g.latch.at)
}

// update renews the state and returns when it may change without an event; zero is
// never.
func (g *gpu) update(now time.Time, h *config.Health) time.Time {
	g.release(h)
	cause, reason := g.fault(now, h)
	if cause == Gone || cause == Lost {
		g.away = now
	}
	if cause != "" {
		g.goodSince, g.last = time.Time{}, fault{cause, reason}
		g.state.set(now, cmp.Or(g.latch.cause, cause), both(g.latch.text, reason))
		return time.Time{}
	}
	healthy := g.state.Healthy || g.state.Since.IsZero()
	switch {
	case healthy && !g.latch.holds():
		g.state.set(now, "", "")
		if g.answers(h) {
			return time.Time{}
		}
		return g.silentSince.Add(h.DownAfter)
	case !g.answers(h) || !g.cleared(h):
		g.goodSince = time.Time{}
		g.hold(now, g.obstacle(h))
		return time.Time{}
	}
	if g.goodSince.IsZero() {
		g.goodSince = now
	}
	up := g.goodSince.Add(h.UpAfter)
	if !now.Before(up) {
		g.latch, g.last = latch{}, fault{}
		g.state.set(now, "", "")
		return time.Time{}
	}
	g.hold(now, fmt.Sprintf("it has recovered, and is healthy once that has lasted %s", h.UpAfter))
	return up
}

// hold keeps a GPU unhealthy although it has no fault now.
func (g *gpu) hold(now time.Time, why string) {
	g.state.set(now, cmp.Or(g.latch.cause, g.last.cause), both(cmp.Or(g.latch.text, g.last.reason), why))
}

// answers reports whether the last poll was answered, if that is of interest.
func (g *gpu) answers(h *config.Health) bool {
	return g.silentSince.IsZero() || !h.Checks(config.CheckLost)
}

// obstacle returns what a GPU waits for after an error.
func (g *gpu) obstacle(h *config.Health) string {
	switch {
	case !g.answers(h):
		return "it does not answer yet"
	case g.asked && h.Checks(config.CheckRecovery):
		return ""
	}
	return "the driver does not report whether the GPU has recovered, so it is unhealthy until it was reset " +
		"or this program was restarted"
}

// release forgets an error if its check was turned off meanwhile.
func (g *gpu) release(h *config.Health) {
	if g.latch.holds() && !h.Checks(checkOf(g.latch.cause)) {
		g.last = fault{g.latch.cause, g.latch.text}
		g.latch = latch{}
	}
}

// checkOf returns the check that an error of the past belongs to.
func checkOf(c Cause) config.HealthCheck {
	if c == DoubleBitECC {
		return config.CheckECC
	}
	return config.CheckCodes
}

// checkOfScan returns the check that a fault of the scan belongs to.
func checkOfScan(cause string) config.HealthCheck {
	if cause == machine.UncorrectableErrors {
		return config.CheckECC
	}
	return config.CheckLost
}

// set renews a state; without a cause it is healthy.
func (s *State) set(now time.Time, cause Cause, reason string) {
	healthy := cause == ""
	if s.Since.IsZero() || s.Healthy != healthy {
		s.Since = now
	}
	s.Healthy, s.Cause, s.Reason = healthy, cause, reason
}

func both(first, second string) string {
	if first == "" || second == "" {
		return first + second
	}
	return first + "; " + second
}
