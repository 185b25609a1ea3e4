package agent

import (
	"cmp"
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/gpumode"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
)

// round looks at the node once, and gives every part what it found.
func (a *Agent) round(ctx context.Context, group *errgroup.Group) {
	a.beat.Store(new(time.Now()))
	c := a.resolve(a.monitor.Snapshot().Machine)
	a.monitor.Configure(c)
	// The machine that health was judged of, so that no part is ahead of another.
	found := a.monitor.Snapshot()
	m := c.Serving(found.Machine)
	if text, known := a.API.Annotation(wellknown.CordonedGPUs); known {
		a.modes.Cordon(text)
	}
	a.modes.Round(m, c)
	modes := a.modes.GPUs()
	lasting, reset := a.releases.round(m)
	for _, uuid := range reset {
		a.monitor.Reset(uuid)
	}
	inv := a.inventory(c, found, modes, lasting)
	a.state.Update(inv)
	if reason := a.state.Unwritable(); reason != "" {
		inv = inv.AllUnavailable(reason)
	}
	r := a.newRound(inv, found, modes, lasting)
	r.Wanted = a.resources.update(ctx, group, r, a.driver.known() && a.modes.Known())
	r.Served = a.resources.served()
	last := a.last.Load()
	r.Seen = r.See(last.Seen)
	a.modes.Published(modes)
	a.last.Store(r)
	a.driver.due.Notify()
	a.found.Notify()
	for _, e := range health.Events(last.Health, found, c) {
		a.Log.InfoContext(ctx, "health of a device changed", "event", e.Message)
		a.API.Record(e)
	}
}

// resolve takes the configuration of this node, and its names for the machine's GPUs.
// Labels that were known stay so: a Node that is deleted, and that its kubelet creates
// again, must not have another configuration for a moment.
func (a *Agent) resolve(m *machine.Machine) *config.NodeConfig {
	if labels := a.API.Labels(); labels != nil {
		a.labels = labels
	}
	c := a.Configs.Current().Resolve(a.NodeName, a.labels).For(m)
	return &c
}

// inventory returns the node in this round, under a release of GPUs or none.
func (a *Agent) inventory(
	c *config.NodeConfig, found *health.Snapshot, modes []gpumode.GPU, lasting release.Request,
) *inventory.Inventory {
	gpus := make(map[string]inventory.GPU, len(modes))
	for _, now := range modes {
		state := inventory.GPU{Mode: now.Offered, Unavailable: now.Unavailable, Draining: now.Draining}
		if h, known := found.GPUs[now.UUID]; known && !h.Healthy {
			state.Unhealthy = cmp.Or(h.Reason, "unhealthy")
		}
		if !lasting.Until.IsZero() && lasting.Covers(now.UUID) {
			state.Unhealthy = cmp.Or(state.Unhealthy, release.Reason)
		}
		// A container with a share may start again while its GPU changes its mode.
		edits, err := a.driver.spec.GPUEdits(now.UUID)
		if state.CDIEdits = edits; err != nil && (state.Mode == config.ModeSGPU || a.driver.spec.Absent()) {
			state.CDIError = err.Error()
		}
		gpus[now.UUID] = state
	}
	hcas := map[string]string{}
	for i, id := range found.Machine.HCAIDs() {
		if reason := found.HCA(id).Reason; reason != "" {
			hcas[found.Machine.HCAs[i].Name] = reason
		}
	}
	inv := inventory.New(found.Machine, c, gpus, hcas)
	inv.Elsewhere, inv.Channels = a.resources.elsewhere(inv), a.driver.imexChannels()
	return inv
}

// newRound returns a round before the resources have its inventory.
func (a *Agent) newRound(
	inv *inventory.Inventory, found *health.Snapshot, modes []gpumode.GPU, lasting release.Request,
) *publish.Round {
	r := &publish.Round{
		Node: a.NodeName, Vendors: a.Vendors, Inventory: inv, Health: found, Modes: modes, Release: lasting,
		Sharing: inv.Config.Mode == config.ModeSGPU || a.modes.Any(config.ModeSGPU),
	}
	// CDI alone can bring GPUs that are chosen when a container starts.
	if r.Sharing && a.Strategy == resource.Envvar {
		r.WithoutShares = "mode is sgpu, and no share is served: --device-list-strategy is envvar, which fixes a " +
			"container's GPUs before it starts, and a share's GPU is chosen then; shares take cdi"
	}
	return r
}
