package binder

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// settleAfter is how long files are gathered: what a disk is told often makes
// all that is written to it slow.
const settleAfter = 500 * time.Millisecond

// settler brings files onto the disk soon after they were written, off the path
// of every start: a disk that is busy takes 100 ms and more for that.
//
// It is for loss of power alone. What a process has written outlives it however
// it ends, in the order in which it was written: a record before the spec that
// it is of. After a loss of power no container is left. The kubelet's checkpoint
// has the names then, and what a container had in the last moment is decided
// anew when it starts.
type settler struct {
	dir string
	// done hears of every round.
	done func(error)

	mu sync.Mutex // guards all below
	// written are the names of files since the last round.
	written map[string]bool
	// busy is closed when the goroutine in run ends, nil if there is none.
	busy chan struct{}
	// hurry is closed when somebody waits.
	hurry chan struct{}
}

// add says that a file was written. It returns at once.
func (s *settler) add(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written == nil {
		s.written = make(map[string]bool)
	}
	s.written[name] = true
	if s.busy == nil {
		s.busy, s.hurry = make(chan struct{}), make(chan struct{})
		go s.run(s.hurry)
	}
}

// run works until nothing is left to do.
func (s *settler) run(hurry <-chan struct{}) {
	timer := time.NewTimer(settleAfter)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-hurry:
		}
		s.mu.Lock()
		names := s.written
		s.written = nil
		if len(names) == 0 {
			close(s.busy)
			s.busy = nil
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		var errs []error
		for name := range names {
			errs = append(errs, settle(filepath.Join(s.dir, name)))
		}
		s.done(errors.Join(append(errs, settle(s.dir))...))
		timer.Reset(settleAfter)
	}
}

// wait returns once all that was written is on the disk.
func (s *settler) wait() {
	for {
		s.mu.Lock()
		busy := s.busy
		if s.hurry != nil {
			close(s.hurry)
			s.hurry = nil
		}
		s.mu.Unlock()
		if busy == nil {
			return
		}
		<-busy
	}
}

// settle brings a file onto the disk, or what a directory says of its files. One
// that has gone is in order.
func settle(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
