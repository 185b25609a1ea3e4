// Package notify wakes a goroutine up without waiting for it. A signal carries
// no value: its receiver reads the state that changed, and so any number of
// signals that it has not received yet are one.
package notify

// Signal is a channel of capacity one, for one receiver. The nil Signal, as a
// nil channel, is never received.
type Signal chan struct{}

// New returns a signal that is not set.
func New() Signal { return make(Signal, 1) }

// Notify sets the signal. It never blocks, and does nothing if the signal is
// set already.
func (s Signal) Notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}
