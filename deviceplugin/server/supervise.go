package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

const (
	// poll is how often everything is looked at without an event.
	poll = 5 * time.Second
	// firstDelay and poll bound the one backoff. A kubelet that has bound its
	// socket and does not listen yet rejects for less than a millisecond.
	firstDelay = time.Millisecond
	// orphan is how long a registration may be without a stream. A kubelet
	// opens it right after Register, and never a second time (v1.37
	// plugin/v1beta1/client.go, Run), so a lost one needs a registration. A
	// kubelet that stops in good order ends its streams before its socket.
	orphan = time.Second
	// steady is how long a registration holds until its successor starts
	// without delay.
	steady = 10 * time.Second
	// vacant is how long the resource must be free after another plugin had it:
	// a kubelet that restarts shows all resources free for a moment.
	vacant = 30 * time.Second
	// drain bounds how long calls in flight may hold up an end.
	drain = 10 * time.Second
)

// Reasons for a new registration.
const (
	kubeletReplaced = "the kubelet has a new socket"
	socketGone      = "the plugin's socket was deleted"
	streamLost      = "the kubelet watches no longer"
	optionsChanged  = "pods get the resource in another way"
)

// observation is the input of a decision.
type observation struct {
	now time.Time
	// kubelet is the kubelet.sock, if one is there.
	kubelet identity
	there   bool
	// owner is who else serves the resource; asked is false while that was never
	// asked.
	owner string
	asked bool
	// intact and streams are of the registration, if there is one.
	intact  bool
	streams int
	// changed: the registration was made with other options than the next one would be.
	changed bool
}

// supervisor decides when to register, so that there is exactly one registration
// with the kubelet that runs. It is pure.
type supervisor struct {
	// cleared: the resource was free once. taken: another plugin had it before,
	// and freed is since when it has not.
	cleared, taken bool
	freed          time.Time

	// registered with kubelet since began; unwatched is since when no stream
	// follows, zero while one does.
	registered bool
	kubelet    identity
	began      time.Time
	unwatched  time.Time

	// delay is the backoff with one kubelet.sock, failed, until retry.
	delay  time.Duration
	failed identity
	retry  time.Time
}

// decide reports whether to register now; lost is why the registration that was
// there needs a successor. Otherwise it decides again after wait, or when
// something changes.
func (s *supervisor) decide(o *observation) (register bool, lost string, wait time.Duration) {
	if !s.vacancy(o) {
		wait = poll
		if !s.freed.IsZero() {
			wait = min(wait, s.freed.Add(vacant).Sub(o.now))
		}
		return false, "", wait
	}
	if s.registered {
		if lost = s.outdated(o); lost == "" {
			wait = poll
			if !s.unwatched.IsZero() {
				wait = min(wait, s.unwatched.Add(orphan).Sub(o.now))
			}
			return false, "", wait
		}
		s.lose(o, lost)
	}
	switch {
	case !o.there:
		return false, lost, poll
	case o.kubelet == s.failed && o.now.Before(s.retry):
		return false, lost, s.retry.Sub(o.now)
	}
	return true, lost, 0
}

// vacancy reports whether the resource has been free. Another plugin that comes
// later was second, and pods may hold devices: the registration stays.
func (s *supervisor) vacancy(o *observation) bool {
	switch {
	case s.cleared || !o.asked:
	case o.owner != "":
		s.taken, s.freed = true, time.Time{}
	case !s.taken:
		s.cleared = true
	case s.freed.IsZero():
		s.freed = o.now
	default:
		s.cleared = o.now.Sub(s.freed) >= vacant
	}
	return s.cleared
}

// outdated returns why the registration needs a successor, empty if it needs none.
func (s *supervisor) outdated(o *observation) string {
	switch {
	case o.streams > 0:
		s.unwatched = time.Time{}
	case s.unwatched.IsZero():
		s.unwatched = o.now
	}
	switch {
	case o.there && o.kubelet != s.kubelet:
		return kubeletReplaced
	case o.there && !o.intact:
		return socketGone
	case !s.unwatched.IsZero() && o.now.Sub(s.unwatched) >= orphan:
		return streamLost
	case o.there && o.changed:
		return optionsChanged
	}
	// Without a kubelet.sock there is nothing to register with. The kubelet may
	// still run: its connections outlive its socket.
	return ""
}

// lose ends the registration. The next one does not wait for a new kubelet, nor
// after one that held.
func (s *supervisor) lose(o *observation, reason string) {
	s.registered = false
	if reason == kubeletReplaced || reason == optionsChanged || o.now.Sub(s.began) > steady {
		s.delay, s.retry = 0, o.now
		return
	}
	s.backOff(s.kubelet, o.now)
}

// rejected notes that a kubelet did not take a registration.
func (s *supervisor) rejected(kubelet identity, now time.Time) {
	if kubelet != s.failed {
		s.delay = 0
	}
	s.backOff(kubelet, now)
}

func (s *supervisor) backOff(kubelet identity, now time.Time) {
	s.delay = min(max(2*s.delay, firstDelay), poll)
	s.failed, s.retry = kubelet, now.Add(s.delay)
}

// accepted notes a registration.
func (s *supervisor) accepted(kubelet identity, now time.Time) {
	s.registered, s.kubelet, s.began, s.unwatched = true, kubelet, now, now
}

// supervise keeps the plugin registered until ctx ends.
func (p *Plugin) supervise(ctx context.Context) error {
	s := supervisor{}
	var current *registration
	var ending sync.WaitGroup
	defer ending.Wait()
	retire := func(r *registration) {
		if r != nil {
			ending.Go(func() { r.stop(ctx) })
		}
	}
	defer func() {
		p.noteRegistered("")
		retire(current)
	}()
	for ctx.Err() == nil {
		if orphaned(ctx, p.dir) {
			return fmt.Errorf("%s: %w", p.dir, errDirectoryGone)
		}
		o := observation{now: time.Now()}
		o.kubelet, o.there = identify(filepath.Join(p.dir, kubeletSocket))
		o.owner, o.asked = p.owner()
		var streams <-chan struct{}
		if current != nil {
			o.intact, o.changed = current.intact(), current.claimed != p.claimed.Load()
			o.streams, streams = current.server.traffic.streaming(), current.server.traffic.changed
		}
		register, lost, wait := s.decide(&o)
		if lost != "" {
			p.noteRegistered("")
			p.log.Info("registering again", "reason", lost)
		}
		if !register {
			select {
			case <-p.retry:
			case <-streams:
			case <-time.After(wait):
			case <-ctx.Done():
			}
			continue
		}
		next, err := p.open(ctx)
		if err != nil {
			p.noteFailure(err)
			s.rejected(o.kubelet, time.Now())
			continue
		}
		// The new one is registered before the old one ends: the kubelet then
		// has devices all the time.
		retire(current)
		current = next
		s.accepted(current.kubelet, time.Now())
		p.noteRegistered(current.socket)
	}
	return nil
}

// watchOwner keeps asking who else serves the resource.
func (p *Plugin) watchOwner(ctx context.Context) {
	for ctx.Err() == nil {
		p.noteOwner(p.askOwner(ctx))
		p.retry.Notify()
		pause := vacant
		if !p.Status().Registered {
			pause = poll
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// askOwner names another device plugin of the resource, or the DeviceClass that
// claims it. An error means none: with the API server away, devices must still
// be served.
func (p *Plugin) askOwner(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	owner, err := Conflict(ctx, p.options.KubeletDir, p.options.Name, p.options.PodResources)
	if owner != "" {
		return owner
	}
	asking, cancel := context.WithTimeout(ctx, classTimeout)
	defer cancel()
	class, classErr := p.options.API.DeviceClass(asking, p.options.Name)
	if class != "" {
		return class
	}
	if err = errors.Join(err, classErr); err != nil && !errors.Is(err, context.Canceled) {
		p.metrics.faults.WithLabelValues("claimed").Inc()
		p.log.Warn("conflicting plugins are not known", "err", err)
	}
	return ""
}
