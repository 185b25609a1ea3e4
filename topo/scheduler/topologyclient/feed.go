// Package topologyclient keeps the last good map of the fabric: what topo-master answers
// to GET /node_group.
//
// It owns the polling, what of an answer is believed, and how old a map may
// grow. It asks in the background only: who schedules reads the last good map
// and never waits for the network. What the groups mean is topo/placement's.
package topologyclient

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Defaults of Options.
const (
	DefaultInterval = 5 * time.Second
	DefaultMaxAge   = 5 * time.Minute
	DefaultTimeout  = 10 * time.Second
	// DefaultMaxBytes is ten times what 100,000 nodes need.
	DefaultMaxBytes = 64 << 20
)

// Options are what a Feed needs.
type Options struct {
	// URL is topo-master's GET /node_group.
	URL string
	// Interval is the time from one answer to the next question.
	Interval time.Duration
	// MaxAge is how long a map is believed after topo-master confirmed it last.
	MaxAge time.Duration
	// Timeout bounds one exchange, the body included.
	Timeout time.Duration
	// MaxBytes is the longest answer that is read.
	MaxBytes int64
	// CAFile has the authorities, in PEM, that vouch for topo-master; empty is
	// those of the system. TokenFile has the bearer token to ask with; empty is
	// none. Both are read at every question: they are renewed.
	CAFile, TokenFile string
	// Client is nil for a client of its own, and never changed.
	Client *http.Client
	Log    *slog.Logger
}

// Map is what topo-master said.
type Map struct {
	// Groups are the tree; not to be changed. Nil before the first answer.
	Groups []v1alpha1.Group
	// Generation counts the different maps that there were, from 1.
	Generation uint64
	// Confirmed is when topo-master said last that this is the map.
	Confirmed time.Time
}

// Feed asks.
type Feed struct {
	options Options
	// secured is the client that believes in the authorities of pem; it is Run's.
	secured *http.Client
	pem     []byte

	mu      sync.Mutex
	now     Map
	tag     string
	failure error
	// changed is closed when there is another map.
	changed chan struct{}
}

// New returns a feed; Run makes it ask.
func New(o Options) *Feed {
	o.Interval = orDefault(o.Interval, DefaultInterval)
	o.MaxAge = orDefault(o.MaxAge, DefaultMaxAge)
	o.Timeout = orDefault(o.Timeout, DefaultTimeout)
	o.MaxBytes = orDefault(o.MaxBytes, DefaultMaxBytes)
	if o.Client == nil {
		o.Client = client(nil)
	}
	return &Feed{options: o, changed: make(chan struct{})}
}

func orDefault[T ~int64](value, otherwise T) T {
	if value > 0 {
		return value
	}
	return otherwise
}

// Current is the last good map and a channel that is closed when there is
// another one. It never waits.
func (f *Feed) Current() (Map, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, f.changed
}

// Fresh tells whether a map is young enough to be believed.
func (f *Feed) Fresh(m Map, at time.Time) bool {
	return m.Generation > 0 && at.Sub(m.Confirmed) <= f.options.MaxAge
}

// Failure is what was wrong with the last question; nil if it was answered.
func (f *Feed) Failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failure
}

// Run asks until the context ends. Its error is nil: an absent topo-master is a
// state.
func (f *Feed) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		f.poll(ctx)
		timer.Reset(f.options.Interval)
	}
}

// poll asks once.
func (f *Feed) poll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, f.options.Timeout)
	defer cancel()
	f.mu.Lock()
	tag := f.tag
	f.mu.Unlock()

	answer, err := f.ask(ctx, tag)

	f.mu.Lock()
	defer f.mu.Unlock()
	switch was := f.failure; {
	case err != nil && ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled):
		return
	case err != nil:
		if was == nil || was.Error() != err.Error() {
			f.options.Log.WarnContext(ctx, "no map from topo-master", "err", err, "url", f.options.URL)
		}
		f.failure = err
		return
	case was != nil:
		f.options.Log.InfoContext(ctx, "topo-master answers again", "url", f.options.URL)
	}
	f.failure = nil
	// The same map, believed again, is news to who waited for one.
	now := time.Now()
	stale := !f.Fresh(f.now, now)
	f.now.Confirmed = now
	if answer.unchanged && !stale {
		return
	}
	if !answer.unchanged {
		f.tag = answer.tag
		f.now.Groups = answer.groups
		f.now.Generation++
	}
	close(f.changed)
	f.changed = make(chan struct{})
}
