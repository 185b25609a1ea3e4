package master

import "time"

const (
	// silence is how long the API server may send nothing on a watch: it sends
	// a bookmark about every minute.
	silence = 90 * time.Second
	// grace is how long workers then have for their next heartbeat, which they
	// could not write while the API server was away.
	grace = 2 * time.Minute
)

// away reports whether a watch has been silent for too long; contact is when it
// last received anything, zero for never.
func away(now, contact time.Time) bool { return !contact.IsZero() && now.Sub(contact) > silence }

// heartbeatClock is the time by which heartbeats are checked. It stops while the
// watch of reports is silent: then a missing heartbeat is no fault of the worker.
type heartbeatClock struct {
	stopped time.Time // When it stopped, zero while it runs.
	until   time.Time // When it runs again, zero while the API server is away.
}

// now takes the time and when the API server last sent anything, zero for never.
func (c *heartbeatClock) now(now, contact time.Time) time.Time {
	isAway := away(now, contact)
	switch {
	case isAway && c.stopped.IsZero():
		c.stopped = contact.Add(silence)
	case isAway:
		c.until = time.Time{}
	case c.stopped.IsZero():
		return now
	case c.until.IsZero():
		c.until = now.Add(grace)
	case !now.Before(c.until):
		*c = heartbeatClock{}
		return now
	}
	return c.stopped
}
