package master

import "time"

const (
	// silence is how long the API server may say nothing before it counts as
	// away: it sends a bookmark about every minute.
	silence = 90 * time.Second
	// grace is how long workers then have for their next heartbeat, which
	// they could not write while it was away.
	grace = 2 * time.Minute
)

// away tells whether a watch has been silent for too long; contact is
// when it last said anything, zero for never.
func away(now, contact time.Time) bool { return !contact.IsZero() && now.Sub(contact) > silence }

// clock is the time by which heartbeats are judged. It stands still while the
// API server is away for the watch of reports: that no heartbeat comes through
// says nothing about the workers then.
type clock struct {
	frozen time.Time // When it stopped, zero while it runs.
	until  time.Time // When it runs again, zero while the API server is away.
}

// now takes the time, and when the API server last said anything (zero: never).
func (c *clock) now(now, contact time.Time) time.Time {
	isAway := away(now, contact)
	switch {
	case isAway && c.frozen.IsZero():
		c.frozen = contact.Add(silence)
	case isAway:
		c.until = time.Time{}
	case c.frozen.IsZero():
		return now
	case c.until.IsZero():
		c.until = now.Add(grace)
	case !now.Before(c.until):
		*c = clock{}
		return now
	}
	return c.frozen
}
