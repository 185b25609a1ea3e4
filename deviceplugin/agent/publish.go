package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/rdma"
	"github.com/heddle-dev/heddle/discovery/capacity"
)

// NothingToOffer is the cause of a resource that has no device at all.
const NothingToOffer health.Cause = "NothingToOffer"

const (
	publishTimeout = 10 * time.Second
	publishRetry   = 15 * time.Second
)

// publishLoop tells the Node, apart from the loop that tells the kubelet: an
// API server that is slow must not hold back the health of a device.
func (a *Agent) publishLoop(ctx context.Context) error {
	if a.Publisher == nil {
		return nil
	}
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.tell:
		case <-retry:
		}
		retry = nil
		if err := a.publish(ctx); err != nil && ctx.Err() == nil {
			a.Log.WarnContext(ctx, "the Node does not say yet what its devices are", "err", err, "retry_in", publishRetry)
			retry = time.After(publishRetry)
		}
	}
}

func (a *Agent) publish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	m, c := a.machine(), a.config()
	condition := health.ConditionOf(a.shortages(m, c))
	topology := ""
	a.mu.Lock()
	whole := a.whole
	a.mu.Unlock()
	if whole != nil {
		held, err := a.binder.Holders(ctx, c.Resources.GPU)
		if err != nil {
			return fmt.Errorf("who holds GPUs: %w", err)
		}
		topology = whole.Annotation(held)
	}
	return a.Publisher.Publish(ctx, condition, topology)
}

// shortages are the devices that no pod can get, and why: what is ill, and
// resources without any device.
func (a *Agent) shortages(m *machine.Machine, c *config.NodeConfig) []health.Shortage {
	var all []health.Shortage
	s := a.monitor.Snapshot()
	gpus := map[string]health.State{}
	for i := range m.GPUs {
		gpus[fmt.Sprintf("GPU%d", m.GPUs[i].Index)] = s.GPU(m.GPUs[i].UUID)
	}
	for _, r := range capacity.Of(m, c) {
		states := gpus
		for i := range c.RDMA.Resources {
			if c.RDMA.Resources[i].Name == r.Name {
				states = a.hcaStates(m, c, &c.RDMA.Resources[i], s)
			}
		}
		ill := health.Shortages(r.Name, states)
		if len(ill) == 0 && r.Count == 0 {
			ill = []health.Shortage{{Resource: r.Name, Cause: NothingToOffer, Message: r.Reason}}
		}
		all = append(all, ill...)
	}
	return all
}

func (a *Agent) hcaStates(
	m *machine.Machine, c *config.NodeConfig, r *config.RDMAResource, s *health.Snapshot,
) map[string]health.State {
	states := map[string]health.State{}
	for _, member := range rdma.Members(c.WithRoles(m), r, a.against) {
		states[m.HCAs[member.Index].Name] = s.HCA(member.ID)
	}
	return states
}

// shortages is heddle_unavailable{resource,reason}.
type shortages struct{ gauge *prometheus.GaugeVec }

func newShortages(r prometheus.Registerer) *shortages {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "heddle_unavailable",
		Help: "Devices of a resource that no pod can get, by reason; 1 for a resource without any device.",
	}, []string{"resource", "reason"})
	r.MustRegister(g)
	return &shortages{gauge: g}
}

func (s *shortages) set(all []health.Shortage) {
	s.gauge.Reset()
	for _, one := range all {
		s.gauge.WithLabelValues(one.Resource, string(one.Cause)).Set(float64(max(one.Count, 1)))
	}
}
