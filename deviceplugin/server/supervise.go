package server

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// poll is how often everything is looked at without an event.
	poll = 5 * time.Second
	// firstDelay and poll bound the one backoff. A kubelet that has bound its
	// socket and does not listen yet refuses for less than a millisecond.
	firstDelay = time.Millisecond
	// orphan is how long a registration may be without a stream. A kubelet
	// opens it right after Register, and never a second time (v1.37
	// plugin/v1beta1/client.go, Run), so a lost one needs a registration. A
	// kubelet that stops in good order ends its streams before its socket.
	orphan = time.Second
	// steady is how long a registration holds until its successor starts
	// without delay.
	steady = 10 * time.Second
	// vacant is how long the resource must be free after somebody else had it:
	// a kubelet that restarts shows all resources free for a moment.
	vacant = 30 * time.Second
	// drain bounds how long calls in flight may hold up an end.
	drain = 10 * time.Second
)

// supervisor keeps exactly one registration with the kubelet that runs. What
// touches the world is a function.
type supervisor struct {
	// look says which kubelet.sock there is, false for none. Its error is for
	// good.
	look func() (identity, bool, error)
	// open registers.
	open func(context.Context) (*life, error)
	// claimed names who else has the resource, "" for nobody. takeover: it is
	// asked and not obeyed.
	claimed  func(context.Context) string
	takeover bool
	// wake receives when something changed in the directory.
	wake <-chan struct{}
	log  *slog.Logger
	// registered is told when a registration begins and when it is lost, and
	// owner who else has the resource, each time anew.
	registered func(socket string)
	owner      func(string)
	// failed is told of registrations that fail.
	failed func(error)

	// ending counts lives that are being stopped.
	ending sync.WaitGroup
	// delay is the backoff after failures with one kubelet.sock.
	delay   time.Duration
	refused identity
}

func (s *supervisor) run(ctx context.Context) error {
	defer s.ending.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !s.vacancy(ctx) {
		return nil
	}
	s.ending.Go(func() { s.observe(ctx) })
	var current *life
	defer func() {
		s.registered("")
		s.retire(ctx, current)
	}()
	for ctx.Err() == nil {
		kubelet, there, err := s.look()
		if err != nil {
			return err
		}
		if !there {
			s.pause(ctx, poll)
			continue
		}
		next, err := s.open(ctx)
		if err != nil {
			s.failed(err)
			s.again(ctx, kubelet)
			continue
		}
		// The new one is registered before the old one ends: the kubelet then
		// has devices all the time.
		s.retire(ctx, current)
		current = next
		s.registered(current.socket)
		start := time.Now()
		reason := s.watch(ctx, current)
		if ctx.Err() != nil {
			return nil
		}
		s.registered("")
		s.log.Info("registering again", "reason", reason)
		s.settle(ctx, reason, start)
	}
	return nil
}

// Reasons for a new registration.
const (
	kubeletReplaced = "the kubelet has a new socket"
	socketGone      = "our socket was deleted"
	streamLost      = "the kubelet watches no longer"
)

// settle decides whether the next registration waits: not for a new kubelet,
// and not after one that held.
func (s *supervisor) settle(ctx context.Context, reason string, since time.Time) {
	if reason == kubeletReplaced || time.Since(since) > steady {
		s.delay = 0
		return
	}
	s.delay = longer(s.delay)
	s.pause(ctx, s.delay)
}

func longer(delay time.Duration) time.Duration { return min(max(2*delay, firstDelay), poll) }

// again waits for the next try: the backoff's time, or a kubelet.sock other
// than the one that failed.
func (s *supervisor) again(ctx context.Context, failed identity) {
	if failed != s.refused {
		s.refused, s.delay = failed, 0
	}
	s.delay = longer(s.delay)
	timer := time.NewTimer(s.delay)
	defer timer.Stop()
	for {
		select {
		case <-s.wake:
			if now, there, err := s.look(); err != nil || !there || now != failed {
				return
			}
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// watch returns why the life needs a successor, or when ctx ends.
func (s *supervisor) watch(ctx context.Context, l *life) string {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	lonely := time.NewTimer(orphan)
	defer lonely.Stop()
	watched := 0
	for ctx.Err() == nil {
		if reason := s.outdated(l); reason != "" {
			return reason
		}
		n, note := l.streams()
		if n > 0 {
			lonely.Stop()
		} else if watched > 0 {
			lonely.Reset(orphan)
		}
		watched = n
		select {
		case <-s.wake:
		case <-ticker.C:
		case <-note:
		case <-lonely.C:
			if n, _ := l.streams(); n == 0 {
				return streamLost
			}
		case <-ctx.Done():
		}
	}
	return ""
}

func (s *supervisor) outdated(l *life) string {
	now, there, err := s.look()
	switch {
	case err != nil:
		// run meets the error again and returns it.
		return socketGone
	case !there:
		// Nobody to register with. The kubelet may still run: its connections
		// outlive its socket.
		return ""
	case now != l.kubelet:
		return kubeletReplaced
	case !l.intact():
		return socketGone
	}
	return ""
}

// vacancy waits until nobody else has the resource. False when ctx ends.
func (s *supervisor) vacancy(ctx context.Context) bool {
	var taken bool
	var free time.Time
	for ctx.Err() == nil {
		owner := s.claimed(ctx)
		s.owner(owner)
		switch {
		case s.takeover:
			return true
		case owner != "":
			taken, free = true, time.Time{}
		case !taken:
			return ctx.Err() == nil
		case free.IsZero():
			free = time.Now()
		case time.Since(free) >= vacant:
			return ctx.Err() == nil
		}
		wait(ctx, poll)
	}
	return false
}

// observe keeps looking for somebody who claims the resource while we serve
// it. We were first and pods may hold devices, so we stay, and say so.
func (s *supervisor) observe(ctx context.Context) {
	for ctx.Err() == nil {
		wait(ctx, vacant)
		if ctx.Err() == nil {
			s.owner(s.claimed(ctx))
		}
	}
}

// retire stops a life without waiting for its calls.
func (s *supervisor) retire(ctx context.Context, l *life) {
	if l == nil {
		return
	}
	s.ending.Go(func() { l.drain(ctx) })
}

// pause waits for a time or an event.
func (s *supervisor) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.wake:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
