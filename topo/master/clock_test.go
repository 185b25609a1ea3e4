package master

import (
	"testing"
	"time"
)

func TestHeartbeatClockStopsWhileAPIServerIsAway(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	type step struct {
		now, contact int // Seconds; contact -1 is never.
		want         int
	}
	for _, tt := range []struct {
		name  string
		steps []step
	}{
		{"no contact yet", []step{{100, -1, 100}, {1000, -1, 1000}}},
		{"always there", []step{{0, 0, 0}, {60, 0, 60}, {90, 60, 90}, {200, 190, 200}}},
		{"away and back", []step{
			{0, 0, 0},
			{90, 0, 90},
			{91, 0, 90}, // From here on workers are not blamed for missing heartbeats.
			{3600, 0, 90},
			{3601, 3601, 90}, // Back: the workers' heartbeats are on their way.
			{3720, 3715, 90},
			{3721, 3715, 3721},
			{3800, 3715, 3800},
		}},
		{"away again before it ran", []step{
			{0, 0, 0}, {100, 0, 90}, {110, 110, 90}, {201, 110, 90}, {300, 300, 90}, {419, 400, 90}, {420, 400, 420},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c heartbeatClock
			for _, s := range tt.steps {
				contact := at(s.contact)
				if s.contact < 0 {
					contact = time.Time{}
				}
				if got := c.now(at(s.now), contact); !got.Equal(at(s.want)) {
					t.Fatalf("at %d s with contact at %d s: %s, want %d s", s.now, s.contact, got.Sub(start), s.want)
				}
			}
		})
	}
}
