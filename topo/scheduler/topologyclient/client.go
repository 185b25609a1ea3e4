// Package topologyclient keeps the last good topology tree: what topo-master
// answers to GET /node_group.
//
// It owns the polling, the validation of answers, and how old a tree may grow. It
// polls in the background only: a scheduling cycle reads the last good tree and
// never waits for the network. What the groups mean is topo/placement's.
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

// Options of a Client.
type Options struct {
	// URL is topo-master's GET /node_group. Without it there is never a tree.
	URL string
	// Interval is the time from one answer to the next request.
	Interval time.Duration
	// MaxAge is how long a tree is fresh after topo-master confirmed it last.
	MaxAge time.Duration
	// Timeout bounds one exchange, the body included.
	Timeout time.Duration
	// MaxBytes is the longest answer that is read.
	MaxBytes int64
	// CAFile has the certificate authorities for topo-master in PEM; empty is those
	// of the system. TokenFile has the bearer token; empty is none. Both are read
	// for every request, since they are renewed.
	CAFile, TokenFile string
	// HTTP is nil for a client of its own, and never changed.
	HTTP *http.Client
	Log  *slog.Logger
}

// Tree is the last good answer of topo-master.
type Tree struct {
	// Groups are not to be changed; nil before the first answer.
	Groups []v1alpha1.Group
	// Generation counts the different trees that there were, from 1.
	Generation uint64
	// Confirmed is when topo-master confirmed last that this is the tree.
	Confirmed time.Time
	maxAge    time.Duration
}

// Fresh reports whether a tree is young enough to plan by.
func (t *Tree) Fresh(now time.Time) bool { return t.Generation > 0 && now.Sub(t.Confirmed) <= t.maxAge }

// Client polls topo-master.
type Client struct {
	options Options

	mu   sync.Mutex
	tree Tree
	etag string
	err  error
	// changed is closed when there is another tree.
	changed chan struct{}
}

// New returns a client; Run polls.
func New(o Options) *Client {
	o.Interval = orDefault(o.Interval, DefaultInterval)
	o.MaxAge = orDefault(o.MaxAge, DefaultMaxAge)
	o.Timeout = orDefault(o.Timeout, DefaultTimeout)
	o.MaxBytes = orDefault(o.MaxBytes, DefaultMaxBytes)
	if o.HTTP == nil {
		o.HTTP = httpClient(nil, false)
	}
	return &Client{options: o, tree: Tree{maxAge: o.MaxAge}, changed: make(chan struct{})}
}

func orDefault[T ~int64](value, otherwise T) T {
	if value > 0 {
		return value
	}
	return otherwise
}

// Configured reports whether there is a topo-master to ask.
func (c *Client) Configured() bool { return c.options.URL != "" }

// Current is the last good tree, and a channel that is closed when there is another
// one. It never waits.
func (c *Client) Current() (Tree, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tree, c.changed
}

// Err is the error of the last request; nil if it was answered.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Run polls until the context ends. An absent topo-master is a state, not an error.
func (c *Client) Run(ctx context.Context) {
	if !c.Configured() {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		c.poll(ctx)
		timer.Reset(c.options.Interval)
	}
}

func (c *Client) poll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	c.mu.Lock()
	etag := c.etag
	c.mu.Unlock()

	answer, err := c.fetch(ctx, etag)

	c.mu.Lock()
	defer c.mu.Unlock()
	switch previous := c.err; {
	case err != nil && ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled):
		return
	case err != nil:
		if previous == nil || previous.Error() != err.Error() {
			c.options.Log.WarnContext(ctx, "cannot fetch topology from topo-master", "err", err, "url", c.options.URL)
		}
		c.err = err
		return
	case previous != nil:
		c.options.Log.InfoContext(ctx, "topo-master answers again", "url", c.options.URL)
	}
	c.err = nil
	// The same tree, fresh again, is a change for gangs that wait for one.
	now := time.Now()
	stale := !c.tree.Fresh(now)
	c.tree.Confirmed = now
	if answer.notModified && !stale {
		return
	}
	if !answer.notModified {
		c.etag = answer.etag
		c.tree.Groups = answer.groups
		c.tree.Generation++
	}
	close(c.changed)
	c.changed = make(chan struct{})
}
