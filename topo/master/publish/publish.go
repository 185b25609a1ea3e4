// Package publish writes what the leader of the replicas says about the fabric
// into the API server: labels of Nodes, who walks which leaf, HyperNodes, a
// Kueue Topology.
//
// It owns the lease, the order and the pace of writes, and what is taken back
// when it is not ours any more. It writes only where the API server has
// something else; what other managers own stays theirs. What is written is
// export's and topo/fabric's to decide.
package publish

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// FieldManager owns what we apply.
const FieldManager = "heddle-topo-master"

// Views is where the current view comes from: master.Master.
type Views interface {
	// Current is the last view, nil before the first, and a channel that is
	// closed when there is another.
	Current() (v *snapshot.Snapshot, next <-chan struct{})
	// WantWalks says whether views are to have Walks.
	WantWalks(on bool)
}

// Exports say what is written. What is off is taken back.
type Exports struct {
	Labels     bool
	HyperNodes bool
	Kueue      bool
}

// Options are what a Publisher needs.
type Options struct {
	Views Views
	// Objects writes; Raw asks which versions of an API there are.
	Objects metadata.Interface
	Raw     rest.Interface
	Exports Exports
	// Templates make the labels' keys. None means export.DefaultTemplate.
	Templates []export.Template
	// Force takes labels over that another manager holds with another value.
	Force bool
	// Settle is the time for changes to gather before a pass; 0 means 1 s.
	Settle   time.Duration
	Registry prometheus.Registerer
	Log      *slog.Logger
}

// Publisher writes while it leads.
type Publisher struct {
	options Options
	metrics *metrics
}

// New returns a publisher; Lead or Run uses it.
func New(o Options) *Publisher {
	if len(o.Templates) == 0 {
		o.Templates = []export.Template{export.DefaultTemplate}
	}
	if o.Settle == 0 {
		o.Settle = time.Second
	}
	return &Publisher{options: o, metrics: newMetrics(o.Registry)}
}

const (
	// refresh is the time after which everything is compared again.
	refresh = 5 * time.Minute
	// The time until a pass is tried again that failed.
	retryFirst = 2 * time.Second
	retryLast  = time.Minute
)

// writer brings one kind of objects up to date with a view. full means that
// nothing is taken for known.
type writer interface {
	sync(ctx context.Context, v *snapshot.Snapshot, full bool) error
}

// Lead writes until ctx ends: what is wrong at the beginning, what changes,
// and every five minutes what somebody else changed.
func (p *Publisher) Lead(ctx context.Context) {
	p.options.Views.WantWalks(true)
	defer p.options.Views.WantWalks(false)
	p.metrics.leader.Set(1)
	defer p.metrics.leader.Set(0)
	// Labels last: those of a new fleet take minutes.
	writers := []writer{newWalks(p), newHyperNodes(p), newKueue(p), newLabels(p)}
	full, wait := time.Now(), retryFirst
	for ctx.Err() == nil {
		v, next := p.options.Views.Current()
		pause := refresh
		if v != nil {
			everything := !time.Now().Before(full)
			if everything {
				full = time.Now().Add(refresh)
			}
			err := syncAll(ctx, writers, v, everything)
			switch {
			case err == nil, ctx.Err() != nil:
				wait = retryFirst
			case onlyUnfinished(err):
				pause, wait = 0, retryFirst
			default:
				p.options.Log.WarnContext(ctx, "not all could be written", "err", err)
				pause, full = wait, time.Time{}
				wait = min(2*wait, retryLast)
			}
		}
		p.rest(ctx, next, pause)
	}
}

// errUnfinished means that a writer stopped to look at a newer view.
var errUnfinished = errors.New("not finished")

// onlyUnfinished tells whether nothing else went wrong.
func onlyUnfinished(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, part := range joined.Unwrap() {
			if !onlyUnfinished(part) {
				return false
			}
		}
		return true
	}
	return errors.Is(err, errUnfinished)
}

// rest waits for the next view, and for others to come with it.
func (p *Publisher) rest(ctx context.Context, next <-chan struct{}, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
		return
	case <-next:
	}
	gather := time.NewTimer(p.options.Settle)
	defer gather.Stop()
	select {
	case <-ctx.Done():
	case <-gather.C:
	}
}

// syncAll lets every writer work: one that fails does not keep the others from it.
func syncAll(ctx context.Context, writers []writer, v *snapshot.Snapshot, full bool) error {
	var faults []error
	for _, w := range writers {
		if err := w.sync(ctx, v, full); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}
