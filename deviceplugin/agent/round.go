package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/breaker"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/gpumode"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/internal/notify"
)

// round looks at the node once, and gives every part what it found.
func (a *Agent) round(ctx context.Context, group *errgroup.Group) {
	a.beat.Store(new(time.Now()))
	c := a.resolve(a.monitor.Snapshot().Machine)
	a.monitor.Configure(c, a.state.Dirty(c.Health.DirtyAfter))
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
	ready := a.driver.known.Load() && a.modes.Known() // Before the spec is looked at: GPUs that lack one are tainted.
	inv := a.inventory(c, found, modes, lasting)
	a.state.Update(inv)
	if reason := a.state.Unwritable(); reason != "" {
		inv = inv.AllUnavailable(reason)
	} else if rejects := a.rejects.now.Load(); rejects.Phase == breaker.Withdrawn {
		inv = inv.AllUnavailable(rejects.String())
	}
	r := a.newRound(inv, found, modes, lasting)
	r.Wanted = a.resources.update(ctx, group, r, ready)
	if a.claims != nil && ready {
		a.claims.Update(inv)
	}
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
// Labels and annotations that were known stay so: a Node that is deleted, and that its kubelet creates
// again, must not have another configuration for a moment.
func (a *Agent) resolve(m *machine.Machine) *config.NodeConfig {
	if labels := a.API.Labels(); labels != nil {
		a.labels = labels
	}
	c := a.Configs.Current().Resolve(a.NodeName, a.labels).For(m)
	if node, _ := a.API.Node(); node != nil {
		a.annotations = node.Annotations
	}
	c.DetectHAMi(a.annotations)
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
		at := slices.IndexFunc(found.Machine.GPUs, func(g machine.GPU) bool { return g.UUID == now.UUID })
		needed := state.Mode == config.ModeSGPU || // Containers with MIG devices have those alone.
			state.Mode == config.ModeClaims && at >= 0 && !found.Machine.GPUs[at].MIG.Enabled
		// A container with a share may start again while its GPU changes its mode.
		edits, err := a.driver.spec.GPUEdits(now.UUID)
		if state.CDIEdits = edits; err != nil && (needed || a.driver.spec.Absent()) {
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

// claimed reports whether pods get all GPUs of a resource by claims.
func claimed(inv *inventory.Inventory, name string) bool {
	some := false
	for i := range inv.Machine.GPUs {
		g := &inv.Machine.GPUs[i]
		if inv.Config.GPUResource(g) != name {
			continue
		}
		if inv.GPUs[g.UUID].Mode != config.ModeClaims {
			return false
		}
		some = true
	}
	return some
}

// newRound returns a round before the resources have its inventory.
func (a *Agent) newRound(
	inv *inventory.Inventory, found *health.Snapshot, modes []gpumode.GPU, lasting release.Request,
) *publish.Round {
	r := &publish.Round{
		Node: a.NodeName, Vendors: a.Vendors, Inventory: inv, Health: found, Modes: modes, Release: lasting,
		Rejects: *a.rejects.now.Load(),
		Sharing: inv.Config.Mode == config.ModeSGPU || a.modes.Any(config.ModeSGPU),
	}
	// CDI alone can bring GPUs that are chosen when a container starts.
	if r.Sharing && a.Strategy == resource.Envvar {
		r.WithoutShares = "mode is sgpu, and no share is served: --device-list-strategy is envvar, which fixes a " +
			"container's GPUs before it starts, and a share's GPU is chosen then; shares take cdi"
	}
	return r
}

// driver writes the driver's CDI spec after every round, apart from the loop: a driver
// that hangs must not hold back the health of a device.
type driver struct {
	*Options
	spec *cdi.DriverSpec
	due  notify.Signal
	last *atomic.Pointer[publish.Round]
	// tried is set after the first try, good or bad; from then on known is true.
	tried notify.Signal
	known atomic.Bool
}

// imexChannels are nil where all containers with GPUs get the same.
func (d *driver) imexChannels() *inventory.Channels {
	if !d.Features.IMEXByPod {
		return nil
	}
	return &inventory.Channels{Allowed: d.Features.IMEX, Nodes: d.spec.Channels()}
}

// run writes until ctx ends.
func (d *driver) run(ctx context.Context) error {
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.due:
		}
		if d.Release.Active() {
			// Making it would open a session with the driver.
			_ = d.spec.Restore() // Update meets the error again.
		} else {
			_ = d.spec.Update(ctx, d.last.Load().Inventory.Machine) // The spec keeps the error.
		}
		problem := d.spec.Problem()
		if problem != logged && problem != "" && ctx.Err() == nil {
			d.Log.WarnContext(ctx, "CDI spec of the driver is incomplete", "reason", problem)
		}
		logged = problem
		if !d.known.Swap(true) {
			d.tried.Notify()
		}
	}
}

// releaseFile is in the state directory while a release lasts.
const releaseFile = "gpu-release.json"

// SavedRelease outlives a restart of the device plugin under a release:
// without a session with the driver, nothing else knows the GPUs that pods hold.
type SavedRelease struct {
	Request release.Request `json:"request"`
	// Machine is the last one before the release, a dump as heddle inspect writes it.
	Machine json.RawMessage `json:"machine"`
}

// LoadRelease reads what a device plugin saved under a release, and the machine in
// it; nil if none lasted.
func LoadRelease(stateDir string) (*SavedRelease, *machine.Machine, error) {
	path := filepath.Join(stateDir, releaseFile)
	text, err := hostfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the release: %w", err)
	}
	var saved SavedRelease
	if err := json.Unmarshal(text, &saved); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	m, err := machine.Decode(saved.Machine)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return &saved, m, nil
}

// releases follow what the Node's annotation asks about the release of its GPUs. They
// are the loop's alone.
type releases struct {
	*Options
	// text is the annotation's, asked what it asks for; lasting is the release that
	// GPUs are under. It lasts longer than it is asked for: until the driver has
	// answered again.
	text           string
	asked, lasting release.Request
}

func newReleases(o *Options) *releases {
	r := &releases{Options: o, asked: o.Released, lasting: o.Released}
	if r.lasting.Until.IsZero() {
		r.forget() // It ended while no device plugin ran.
	}
	return r
}

func (r *releases) forget() {
	if err := hostfile.Remove(filepath.Join(r.StateDir, releaseFile)); err != nil {
		r.Log.Warn("file of the release not removed", "err", err)
	}
}

// round returns the release that GPUs are under, the zero one for none, and the GPUs that
// a release has just given back. m is the machine of this round.
func (r *releases) round(m *machine.Machine) (lasting release.Request, back []string) {
	if text, known := r.API.Annotation(wellknown.GPURelease); known {
		r.ask(text)
	}
	switch active := r.asked.Active(time.Now()); {
	case active && !r.asked.Equal(r.lasting):
		r.lasting = r.asked
		r.save(m)
		r.Release.Set(r.asked.Until)
		r.Log.Info("GPUs released", "until", r.asked.Until, "gpus", r.asked.GPUs)
		r.API.Record(health.NodeEvent{Reason: wellknown.EventGPUsReleased, Message: fmt.Sprintf(
			"the driver of the GPUs is released until %s: no new pod gets %s, running pods are not touched",
			r.asked.Until.UTC().Format(time.RFC3339), cmp.Or(strings.Join(r.asked.GPUs, ", "), "a GPU"))})
	case !active && !r.lasting.Until.IsZero():
		r.Release.Set(time.Time{})
		if closed, _ := r.Release.Closed(); !closed && (r.Release == nil || m == r.Source.Machine()) {
			back = r.end(m)
		}
	}
	return r.lasting, back
}

// ask takes the annotation. One that does not parse asks for nothing.
func (r *releases) ask(text string) {
	asked, err := release.Parse(text)
	if err != nil && text != r.text {
		r.Log.Warn("release of GPUs ignored", "err", err)
		r.API.Record(health.NodeEvent{Warning: true, Reason: wellknown.EventGPUReleaseInvalid, Message: err.Error()})
	}
	r.text, r.asked = text, asked
}

// end gives the GPUs, which it returns, to pods again. An operator may have reset them, so earlier
// faults are forgotten, as after a restart.
func (r *releases) end(m *machine.Machine) (back []string) {
	for i := range m.GPUs {
		if r.lasting.Covers(m.GPUs[i].UUID) {
			back = append(back, m.GPUs[i].UUID)
		}
	}
	r.lasting = release.Request{}
	r.forget()
	r.Log.Info("release of GPUs ended")
	r.API.Record(health.NodeEvent{Reason: wellknown.EventGPUReleaseEnded, Message: fmt.Sprintf(
		"the release of the GPUs has ended: the driver is in use again with %d GPUs", len(m.GPUs))})
	return back
}

// save keeps the machine for a start under the release. Without the file such a
// start knows no GPU until the release has ended.
func (r *releases) save(m *machine.Machine) {
	dump, err := machine.Encode(m)
	if err == nil {
		saved := SavedRelease{Request: r.asked, Machine: dump}
		err = hostfile.WriteJSON(filepath.Join(r.StateDir, releaseFile), saved, 0o600, hostfile.Durable)
	}
	if err != nil {
		r.Log.Warn("release of GPUs not saved", "err", err)
	}
}
