package plugin

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/cache"
)

// Option says what the process has for the plugin beside the framework.
type Option func(*Plugin)

// WithMetrics registers the plugin's metrics.
func WithMetrics(r prometheus.Registerer) Option {
	return func(p *Plugin) { p.registry = r }
}

// WithElection says of leader election whether this process has won it; known
// is false as long as there is none. Without the option it always has.
func WithElection(won func() (leads, known bool)) Option {
	return func(p *Plugin) { p.election = won }
}

const (
	// askEvery is how often the election is asked.
	askEvery = 2 * time.Second
	// noElection is how long after the cache is full an election would be known.
	noElection = 20 * time.Second
)

// leadership is what is known of the election.
type leadership struct {
	// asked is when it was asked last, full when the cache was found to be.
	asked, full time.Time
}

// leading tells whether this process schedules. The framework makes plugins,
// fills the cache and calls PreEnqueue in replicas that wait as well; only who
// leads may write for all. Who has led once leads for life: kube-scheduler ends
// when it loses its lease.
func (p *Plugin) leading() bool { return p.election == nil || p.led.Load() }

// inquire asks whether the election is won; tend's alone. A scheduling cycle is
// proof enough.
func (p *Plugin) inquire(now time.Time) {
	l := &p.leadership
	if p.leading() || now.Sub(l.asked) < askEvery {
		return
	}
	l.asked = now
	if l.full.IsZero() && p.filled() {
		l.full = now
	}
	leads, known := p.election()
	if leads || !known && !l.full.IsZero() && now.Sub(l.full) >= noElection {
		p.led.Store(true)
	}
}

// filled tells whether every pod that there was has been seen.
func (p *Plugin) filled() bool { return p.synced == nil || p.synced() }

// seen notes a watch of pods that has to be filled.
func (p *Plugin) seen(r cache.ResourceEventHandlerRegistration) { p.synced = r.HasSynced }
