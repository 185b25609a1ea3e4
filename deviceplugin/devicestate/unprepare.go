package devicestate

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/deviceplugin/allocate"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
)

const (
	// unprepareEvery is the interval between searches for leftovers of gone pods, searchEvery the
	// interval while a kubelet starts, and debounce the delay of the first search after a
	// registration: the lists of all resources go first.
	unprepareEvery = 10 * time.Second
	searchEvery    = time.Second
	debounce       = 50 * time.Millisecond
	// endedFor is goneFor for a pod that the API server has shown to be gone too. It is
	// less than unprepareEvery, so that the next look removes what one has found, within
	// 20 s of the pod's end; equal to it, a look that was early by a millisecond left that
	// to a third one.
	endedFor = unprepareEvery - time.Second
	// goneFor is the time that an entry must be without a pod before it is removed: a kubelet that
	// has just started may not know all its pods yet.
	goneFor = 30 * time.Second
	// forgottenFor is the time that the kubelet must know a pod without its devices before that is
	// reported.
	forgottenFor = 3 * time.Second
	// unclaimedFor bounds how long a name may be without a holder, after Allocate has answered and
	// before the kubelet writes its checkpoint.
	unclaimedFor = time.Minute
)

// Run removes what gone pods leave behind, until ctx ends.
func (s *State) Run(ctx context.Context) error {
	tick := time.NewTicker(unprepareEvery)
	defer tick.Stop()
	for {
		if err := s.Unprepare(ctx); err != nil && ctx.Err() == nil {
			s.options.Log.Warn("cannot clean up after gone pods", "err", err)
		}
		// A kubelet that starts knows its pods within a second or so, gives devices to
		// new ones at once, and may have forgotten what the others have.
		if tick.Reset(unprepareEvery); s.kubelet.Starting() || s.reportsSoon() {
			tick.Reset(searchEvery)
		}
		for due := false; !due; {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				due = true
			case <-s.registered:
				tick.Reset(debounce)
			}
		}
	}
}

func (s *State) reportsSoon() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.uncertain {
		if u.unrecorded == nil && !u.reported {
			return true
		}
	}
	return false
}

// Unprepare looks once for entries, specs and files without a pod, and removes
// those that have been without one for long enough. If PodResources or
// the kubelet's checkpoint cannot be read, nothing is removed: a spec lives as long as its pod,
// also while the kubelet does not call PreStartContainer.
func (s *State) Unprepare(ctx context.Context) error {
	s.problems.Note(problemCDI, s.cdi.Check())
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	seen, err := s.observeBoth(ctx)
	if err != nil {
		return err
	}
	live := liveDevices(seen)
	s.files.Lock() // No file is written while files go.
	defer s.files.Unlock()
	expired := s.expire(seen, live)
	var errs []error
	for _, e := range expired {
		// The entry goes last: if something stays, the next run finds it.
		err := s.cdi.Remove(e.Name())
		if err == nil {
			err = s.checkpoint.remove(e)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.mu.Lock()
		delete(s.entries, e.Device)
		delete(s.gone, e.Device)
		s.mu.Unlock()
	}
	if len(expired) > 0 {
		s.changed.Notify()
	}
	return errors.Join(append(errs, s.sweep(live))...)
}

// liveDevices returns the CDI devices that a container holds by the kubelet.
func liveDevices(seen *observation) map[string]bool {
	live := make(map[string]bool)
	for text := range seen.CDINames() {
		if name, ok := cdi.ParseName(text); ok {
			live[name.Device] = true
		}
	}
	return live
}

// expire marks the entries without a pod and returns those that have been
// without one for long enough.
func (s *State) expire(seen *observation, live map[string]bool) []*allocate.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	var expired []*allocate.Entry
	for device, e := range s.entries {
		gone := e.Owner != nil && seen.Gone(e.Owner.Pod)
		ended := gone && s.isGone(e.Owner.Pod)
		stale := gone && (ended || e.Kind == cdi.SGPU)
		if live[device] && !stale || e.Decision > seen.since || seen.claims(e, s.options.Now()) {
			delete(s.gone, device)
			continue
		}
		since, known := s.gone[device]
		if !known {
			since = s.options.Now()
			s.gone[device] = since
		}
		// What the kubelet's checkpoint names has its files, and no GPUs any more. The
		// kubelet writes the checkpoint again only when it gives a pod something: where
		// PodResources and the API server both show no such pod, no container of it
		// starts again.
		age := s.options.Now().Sub(since)
		if age >= goneFor && !live[device] || age >= endedFor && ended {
			expired = append(expired, e)
		}
	}
	return expired
}

// unclaimed reports whether an entry has no holder yet and may get one. One with a time in the
// future was made before the clock was set back.
func unclaimed(e *allocate.Entry, now time.Time) bool {
	return e.Owner == nil && now.Sub(e.Created).Abs() < unclaimedFor
}

// claims reports whether an entry's pod exists, or may exist.
func (o *observation) claims(e *allocate.Entry, now time.Time) bool {
	if unclaimed(e, now) {
		return true
	}
	for i := range o.Allocations {
		a := &o.Allocations[i]
		if !a.Checkpointed && a.Resource == e.Resource && slices.Equal(a.IDs, e.IDs) &&
			(e.Owner == nil || e.Owner.Pod.Same(a.Pod)) {
			return true
		}
	}
	return e.Owner != nil && o.Active(e.Owner.Pod)
}

// sweep removes files that no entry has: of writes that were cut off, and of
// entries that were set aside and have no container.
func (s *State) sweep(live map[string]bool) error {
	s.mu.Lock()
	for device := range s.entries {
		live[device] = true
	}
	for _, c := range s.claims {
		for i := range c.Devices {
			live[c.Devices[i].CDI] = true
		}
	}
	s.mu.Unlock()
	before := s.options.Now().Add(-unclaimedFor)
	return errors.Join(s.cdi.Sweep(live, before), s.checkpoint.sweep(live, before),
		cdi.SweepDir(s.claimRecords.path, "", jsonSuffix, nil, before)) // Only temporary files: UIDs name no device.
}
