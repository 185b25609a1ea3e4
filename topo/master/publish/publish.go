// Package publish writes the tree into the API server while its replica leads: labels and the
// condition HeddleFabric of Nodes, Events about cables, the status of NodeTopologies, HyperNodes,
// Topologies of Kueue and KAI, pools of IMEX channels.
//
// It owns the lease, the order and the pace of writes, and the removal of objects that are no
// longer exported. It writes only what differs from the API server; fields of other managers stay.
// The content is decided by export and topo/fabric.
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

// FieldManager owns what heddle applies.
const FieldManager = "heddle-topo-master"

// Exports selects the exports. Disabled exports are removed.
type Exports struct {
	Labels     export.LabelSets
	HyperNodes bool
	Kueue      bool
	KAI        bool
	// Conditions are HeddleFabric of Nodes, and Events about cables.
	Conditions bool
	// IMEX are pools of channels for ResourceClaims, one for each NVLink clique; CliqueLabel is the label with a
	// Node's clique.
	IMEX        bool
	CliqueLabel string
}

// Options configures a Publisher.
type Options struct {
	Latest *snapshot.Latest
	// Objects writes; Raw reads the served versions of an API.
	Objects metadata.Interface
	Raw     rest.Interface
	Exports Exports
	// Force takes over labels that another manager set to another value.
	Force bool
	// Debounce is the time for changes to gather before a pass; 0 means 1 s.
	Debounce time.Duration
	// CableDelay is the time for which a change of cables must last before it is written; 0 means 5
	// s.
	CableDelay time.Duration
	Registry   prometheus.Registerer
	Log        *slog.Logger
}

// Publisher writes while it leads.
type Publisher struct {
	options Options
	metrics *metrics
}

// New returns a publisher; Lead or Run uses it.
func New(o Options) *Publisher {
	if o.Debounce == 0 {
		o.Debounce = time.Second
	}
	if o.CableDelay == 0 {
		o.CableDelay = cableDelay
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

// writer brings one kind of objects up to date with a snapshot. full means that nothing is assumed
// about the existing objects.
type writer interface {
	sync(ctx context.Context, s *snapshot.Snapshot, full bool) error
}

// Lead writes until ctx ends: what differs at the beginning, what changes, and
// every five minutes what other clients changed.
func (p *Publisher) Lead(ctx context.Context) {
	p.metrics.leader.Set(1)
	defer p.metrics.leader.Set(0)
	// Labels last: the labels of a new fleet take minutes.
	writers := []writer{
		&objects{Publisher: p, what: export.FormatHyperNode, on: p.options.Exports.HyperNodes, api: &hyperNodes{}},
		&objects{
			Publisher: p, what: export.FormatKueue, on: p.options.Exports.Kueue,
			api: &topologies{group: export.KueueGroup},
		},
		&objects{Publisher: p, what: export.FormatKAI, on: p.options.Exports.KAI, api: &topologies{group: export.KAIGroup}},
		&objects{
			Publisher: p, what: "imex", on: p.options.Exports.IMEX, api: channels{label: p.options.Exports.CliqueLabel},
		},
		newLabels(p),
		newCables(p),
	}
	full, wait := time.Now(), retryFirst
	for ctx.Err() == nil {
		s, next := p.options.Latest.Get()
		pause := refresh
		if s != nil {
			everything := !time.Now().Before(full)
			if everything {
				full = time.Now().Add(refresh)
			}
			var err error
			pause, err = p.syncAll(ctx, writers, s, everything)
			if err != nil && ctx.Err() == nil {
				p.options.Log.WarnContext(ctx, "write failed", "err", err)
				pause, full = wait, time.Time{}
				wait = min(2*wait, retryLast)
			} else {
				wait = retryFirst
			}
		}
		p.rest(ctx, next, pause)
	}
}

// errUnfinished means that a writer stopped to continue with a newer snapshot,
// errWaiting that it has something to write that is to stand for a while first.
var (
	errUnfinished = errors.New("not finished")
	errWaiting    = errors.New("waiting")
)

// syncAll runs every writer: one that fails does not keep the others from it.
// The pause is the time after which it is to run again without a newer snapshot.
func (p *Publisher) syncAll(
	ctx context.Context, writers []writer, s *snapshot.Snapshot, full bool,
) (pause time.Duration, err error) {
	var faults []error
	pause = refresh
	for _, w := range writers {
		switch err := w.sync(ctx, s, full); {
		case errors.Is(err, errUnfinished):
			pause = 0
		case errors.Is(err, errWaiting):
			pause = min(pause, p.options.CableDelay)
		case err != nil:
			faults = append(faults, err)
		}
	}
	return pause, errors.Join(faults...)
}

// rest waits for the next snapshot, and for others to come with it.
func (p *Publisher) rest(ctx context.Context, next <-chan struct{}, pause time.Duration) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(pause):
		return
	case <-next:
	}
	select {
	case <-ctx.Done():
	case <-time.After(p.options.Debounce):
	}
}

// metrics holds the leader's metrics.
type metrics struct {
	leader    prometheus.Gauge
	writes    *prometheus.CounterVec
	failures  *prometheus.CounterVec
	conflicts prometheus.Gauge
	absent    *prometheus.GaugeVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "heddle_topology_leader", Help: "1 while this replica writes.",
		}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_topology_publish_writes_total", Help: "Requests that changed something, by kind of content.",
		}, []string{"what"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_topology_publish_failures_total", Help: "Writes that failed, by kind of content.",
		}, []string{"what"}),
		conflicts: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "heddle_topology_label_conflicts", Help: "Labels that are left to another field manager.",
		}),
		absent: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "heddle_topology_export_absent", Help: "1 if an export is on and its CRD is not installed.",
		}, []string{"what"}),
	}
	r.MustRegister(m.leader, m.writes, m.failures, m.conflicts, m.absent)
	return m
}

// count counts a write by its outcome, which it returns. Both counters exist from the first write
// on, since Prometheus does not see an increase from absent to one.
func (m *metrics) count(what string, err error) error {
	writes, failures := m.writes.WithLabelValues(what), m.failures.WithLabelValues(what)
	if err != nil {
		failures.Inc()
	} else {
		writes.Inc()
	}
	return err
}
