// Package notify wakes a daemon's loop: by a [Signal] when something changed, and by a
// [Retry] when a round failed.
package notify

// Signal is a channel of capacity one, for one receiver. It carries no value: the
// receiver reads the state that changed, so signals that it has not received yet are
// merged. The nil Signal, like a nil channel, is never received.
type Signal chan struct{}

// New returns an unset signal.
func New() Signal { return make(Signal, 1) }

// Notify sets the signal. It never blocks, and does nothing if the signal is already set.
func (s Signal) Notify() {
	select {
	case s <- struct{}{}:
	default:
	}
}
