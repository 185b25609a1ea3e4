package nvml

import (
	"sync"
	"time"

	"github.com/heddle-dev/heddle/discovery/gpu"
)

// closeTimeout bounds how long Close waits for calls beside the reader's: a
// wait for events returns after gpu.EventWait, a poll in milliseconds.
const closeTimeout = 2 * gpu.EventWait

// gate keeps the session open under calls that the reader does not know of:
// ending it unmaps the library. The zero gate is open.
type gate struct {
	// mu guards what follows; it is never held across a call.
	mu     sync.Mutex
	inside int
	// shut lets no call in; left is closed when the last one leaves.
	shut bool
	left chan struct{}
}

// enter lets a call in, unless the session is ending.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return false
	}
	g.inside++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 && g.left != nil {
		close(g.left)
		g.left = nil
	}
}

// close lets no call in and waits until all have left, or until the time is up:
// then the gate is open again and gpu.ErrBusy returned.
func (g *gate) close(timeout time.Duration) error {
	g.mu.Lock()
	g.shut = true
	var left chan struct{}
	if g.inside > 0 {
		left = make(chan struct{})
		g.left = left
	}
	g.mu.Unlock()
	if left == nil {
		return nil
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-left:
		return nil
	case <-timer.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside == 0 {
		return nil
	}
	g.shut, g.left = false, nil
	return gpu.ErrBusy
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
}
