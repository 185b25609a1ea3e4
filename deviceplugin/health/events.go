package health

import (
	"slices"

	"github.com/heddle-dev/heddle/api/config"
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

// Events returns the Events of the devices that became unhealthy or recovered between two snapshots; HCAs only if a
// resource of the configuration has them: storage adapters often have a port without a cable.
func Events(last, now *Snapshot, c *config.NodeConfig) []NodeEvent {
	var all []NodeEvent
	add := func(kind, id string, state State) {
		event := NodeEvent{Reason: wellknown.EventDeviceRecovered}
		event.Message = displayName(kind, id, now.Machine, last.Machine) + " is healthy again"
		if !state.Healthy {
			event.Warning, event.Reason = true, wellknown.EventDeviceUnhealthy
			event.Message = displayName(kind, id, now.Machine, last.Machine) + " is unhealthy: " + state.Reason
		}
		all = append(all, event)
	}
	for _, id := range changed(last.GPUs, now.GPUs) {
		add("GPU", id, now.GPUs[id])
	}
	scan := c.WithRoles(now.Machine)
	for _, id := range changed(last.HCAs, now.HCAs) {
		if offered(scan, c, id) {
			add("HCA", id, now.HCAs[id])
		}
	}
	return all
}

// offered reports whether a resource has this HCA, or had it when it was there.
func offered(scan *machine.Machine, c *config.NodeConfig, id string) bool {
	at := slices.Index(scan.HCAIDs(), id)
	if at < 0 {
		return true // It is gone, and a pod may have it.
	}
	h := &scan.HCAs[at]
	return slices.ContainsFunc(c.RDMA.Resources, func(r config.RDMAResource) bool {
		// A virtual function that one pod has alone is down until it is in that pod's
		// network.
		selected, _ := c.RDMA.Select(scan, &r, h)
		return selected && (h.PhysFn == "" || r.Sharers > 1)
	})
}
