package health

import (
	"context"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
)

// The reasons of the Events.
const (
	ReasonUnhealthy = "DeviceUnhealthy"
	ReasonRecovered = "DeviceRecovered"
)

// NodeEvent is an Event to be recorded: a device that became unhealthy, or has
// recovered.
type NodeEvent struct {
	// Warning is false for a device that has recovered.
	Warning bool
	// Reason is ReasonUnhealthy or ReasonRecovered.
	Reason  string
	Message string
}

// Recorder records Events on the Node. It may block until ctx ends.
type Recorder interface {
	Record(ctx context.Context, n NodeEvent) error
}

const (
	// maxEvents are kept while the API server does not answer; later ones
	// are in the log only.
	maxEvents = 64
	// recordTimeout bounds one Event.
	recordTimeout = 10 * time.Second
)

// publish logs changes and queues Events; mu is held. HCAs that no resource is
// made of are logged at debug level only: storage adapters often have a port
// without a cable.
func (m *Monitor) publish(changes []Change) {
	for _, c := range changes {
		if c.Kind == "HCA" && !m.offered(c.ID) {
			m.log.Debug("health of an HCA changed", "hca", c.ID, "healthy", c.To.Healthy, "reason", c.To.Reason)
			continue
		}
		m.log.Info("health of a device changed", "kind", c.Kind, "device", c.ID, "name", c.Name,
			"healthy", c.To.Healthy, "cause", c.To.Cause, "reason", c.To.Reason)
		n := NodeEvent{Warning: !c.To.Healthy, Reason: ReasonUnhealthy, Message: c.String()}
		if c.To.Healthy {
			n.Reason = ReasonRecovered
		}
		select {
		case m.events <- n:
		default:
			m.log.Warn("event dropped, too many are waiting", "message", n.Message)
		}
	}
}

// offered reports whether a resource has this HCA, or had it when it was there.
func (m *Monitor) offered(id string) bool {
	scan := m.config.WithRoles(m.tracker.machine)
	for i, other := range scan.HCAIDs() {
		if other == id {
			return m.selected(scan, &scan.HCAs[i])
		}
	}
	// It is gone, and a pod may have it.
	return true
}

func (m *Monitor) selected(scan *machine.Machine, h *machine.HCA) bool {
	for i := range m.config.RDMA.Resources {
		if ok, _ := m.config.RDMA.Resources[i].Selectors.Select(scan, h); ok {
			return true
		}
	}
	return false
}

func (m *Monitor) recordLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-m.events:
			if m.options.Recorder != nil {
				m.record(ctx, n)
			}
		}
	}
}

func (m *Monitor) record(ctx context.Context, n NodeEvent) {
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	if err := m.options.Recorder.Record(ctx, n); err != nil {
		m.log.Warn("event not recorded", "err", err, "message", n.Message)
	}
}
