// Package clustermanager asks a server which groups a node is in.
//
// It owns the question, the form of the answer and their bounds: HTTPS only,
// a time limit, no redirect to another host, at most 8 MiB, nothing but JSON.
// The last good answer stays, with its age, whatever the server does next. It
// asks beside the passes of the worker, so that a slow server delays no pass.
// docs/concepts/topology.md describes the exchange for those who write a server.
package clustermanager

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/topo/worker"
)

// The confidence in an answer, in percent: a server knows what was planned.
const (
	confidenceFresh = 80
	// confidenceOld is enough for topo-master to group by: cables do not move because a server is
	// silent.
	confidenceOld = worker.Remembered
	// old is the age from which on an answer counts less, and is stale.
	old = time.Hour
	// interval is the time between two questions: every node of the cluster asks.
	interval = 5 * time.Minute
	// firstRetry is the pause after a failure; it doubles up to the interval.
	firstRetry = 10 * time.Second
)

// Options configures a Source.
type Options struct {
	// Secrets is a folder with the files user, password and, if the server's
	// certificate is signed by an authority of one's own, ca.crt. Empty means
	// no authentication.
	Secrets string
	// UserAgent is the User-Agent of the requests.
	UserAgent string
	// Changed is set after an answer or a failure that differs from the one
	// before.
	Changed notify.Signal
	// Log gets failures, each once.
	Log *slog.Logger
}

// Source holds the last good answer. Run asks.
type Source struct {
	options Options
	// retarget makes Run ask a new target.
	retarget notify.Signal

	// mu guards what follows.
	mu     sync.Mutex
	target target
	last   worker.Place
	// at is the time of the last answer; zero before the first.
	at      time.Time
	failure string
}

// target is the server to ask about which node.
type target struct {
	address, node string
}

// New returns a Source without a server yet.
func New(o Options) *Source {
	return &Source{options: o, retarget: notify.New()}
}

// Kind implements [worker.Source].
func (s *Source) Kind() v1alpha1.Source { return v1alpha1.SourceClusterManager }

// Age returns the age of the last good answer; ok is false without one.
func (s *Source) Age() (age time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.at), !s.at.IsZero()
}

// Discover gives the last good answer, and never waits.
func (s *Source) Discover(_ context.Context, q worker.Query) worker.Report {
	t := target{
		address: string(q.Topology.ClusterManager), node: q.Node,
	}
	if !q.Topology.Uses(config.SourceClusterManager) {
		t.address = ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t != s.target {
		if t.address != s.target.address {
			s.last, s.at, s.failure = worker.Place{}, time.Time{}, ""
		}
		s.target = t
		s.retarget.Notify()
	}
	return s.report(q)
}

func (s *Source) report(q worker.Query) worker.Report {
	var r worker.Report
	name := string(v1alpha1.SourceClusterManager)
	switch {
	case s.target.address == "":
		return r
	case s.at.IsZero() && s.failure == "":
		r.Nothing(&q, worker.Pending)
		return r
	case s.at.IsZero():
		r.Nothing(&q, worker.Unavailable)
		r.Skip(name, s.failure)
		r.Silent(s.at, s.failure)
		return r
	case s.failure != "":
		r.Skip(name, "no good answer since "+s.at.UTC().Format(time.RFC3339)+": "+s.failure)
	}
	confidence := int32(confidenceFresh)
	if time.Since(s.at) > old {
		confidence = confidenceOld
		r.Silent(s.at, cmp.Or(s.failure, "it is asked seldom"))
	}
	r.Enter(&q, s.Kind(), &s.last, confidence)
	return r
}

// Run asks until ctx ends, and then returns nil: at once, then every interval,
// somewhat spread, so that the nodes of a cluster do not ask together. After
// failures it waits ever longer.
func (s *Source) Run(ctx context.Context) error {
	var c *client
	var timer <-chan time.Time
	retry := firstRetry
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.retarget:
		case <-timer:
		}
		s.mu.Lock()
		t := s.target
		s.mu.Unlock()
		if timer = nil; t.address == "" {
			c = nil
			continue
		}
		if c == nil || c.address != t.address {
			c, retry = newClient(t.address, s.options), firstRetry
		}
		found, err := c.fetch(ctx, t.node)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // The context's end is Run's own.
		}
		s.keep(ctx, t, found, err)
		pause := interval
		if err == nil {
			retry = firstRetry
		} else {
			pause, retry = min(retry, interval), min(2*retry, interval)
		}
		timer = time.After(wait.Jitter(pause*9/10, 2./9)) // A tenth more or less.
	}
}

func newClient(address string, o Options) *client {
	return &client{address: address, secrets: o.Secrets, agent: o.UserAgent, patience: patience}
}

// keep enters an outcome, unless the target has changed meanwhile.
func (s *Source) keep(ctx context.Context, t target, found worker.Place, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.address != s.target.address {
		return
	}
	before := s.failure
	if err != nil {
		s.failure = err.Error()
	} else {
		s.failure, s.at, s.last = "", time.Now(), found
	}
	switch {
	case err != nil && s.failure == before:
		return
	case err != nil:
		s.options.Log.WarnContext(ctx, "cluster manager request failed", "address", t.address, "err", err)
	case before != "":
		s.options.Log.InfoContext(ctx, "cluster manager recovered", "address", t.address)
	}
	s.options.Changed.Notify()
}
