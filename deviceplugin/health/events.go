package health

import (
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/wellknown"
)

// NodeEvent is an Event to be recorded on the Node, such as of a device that
// became unhealthy, or has recovered.
type NodeEvent struct {
	// Warning is false for a device that has recovered.
	Warning bool
	// Reason is one of package wellknown.
	Reason  string
	Message string
}

// maxEvents are kept until they are received; later ones are in the log only.
const maxEvents = 64

// publish logs changes and queues Events; mu is held. HCAs that no resource is
// made of are logged at debug level only: storage adapters often have a port
// without a cable.
func (m *Monitor) publish(last, now *Snapshot) {
	for _, id := range changed(last.GPUs, now.GPUs) {
		m.queue("GPU", id, displayName("GPU", id, now.Machine, last.Machine), now.GPUs[id])
	}
	for _, id := range changed(last.HCAs, now.HCAs) {
		state := now.HCAs[id]
		if !m.offered(id) {
			m.options.Log.Debug("health of an HCA changed", "hca", id, "healthy", state.Healthy, "reason", state.Reason)
			continue
		}
		m.queue("HCA", id, displayName("HCA", id, now.Machine, last.Machine), state)
	}
}

func (m *Monitor) queue(kind, id, name string, state State) {
	m.options.Log.Info("health of a device changed", "kind", kind, "device", id, "name", name,
		"healthy", state.Healthy, "cause", state.Cause, "reason", state.Reason)
	event := NodeEvent{
		Warning: true, Reason: wellknown.EventDeviceUnhealthy, Message: name + " is unhealthy: " + state.Reason,
	}
	if state.Healthy {
		event = NodeEvent{Reason: wellknown.EventDeviceRecovered, Message: name + " is healthy again"}
	}
	select {
	case m.events <- event:
	default:
		m.options.Log.Warn("event dropped, too many are waiting", "message", event.Message)
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
	rdma := &m.config.RDMA
	for i := range rdma.Resources {
		r := &rdma.Resources[i]
		// A virtual function that one pod has alone is down until it is in that pod's
		// network.
		if ok, _ := rdma.Select(scan, r, h); ok && (h.PhysFn == "" || r.Sharers > 1) {
			return true
		}
	}
	return false
}
