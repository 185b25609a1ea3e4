// Package agent composes the device plugin of a node: health, the modes of GPUs,
// the resources that the machine and the configuration call for, the device state,
// and what is published about them.
//
// Its loop builds an inventory of the node in every round, and gives it to the
// resources and to the device state. It decides nothing about devices. A resource,
// once served, is served until the process ends, with no devices if need be: a
// kubelet must never lose the plugin of an ID that a pod holds.
package agent

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/gpumode"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/resource/gpu"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/internal/notify"
)

// labelsTimeout is how long a start waits for the Node's labels if the
// configuration depends on them. Then devices are served all the same: the
// API server may be away for hours.
const labelsTimeout = 10 * time.Second

// askTimeout bounds a question that a round, or a resource that starts, waits for.
const askTimeout = time.Second

// Options are what an Agent is made of.
type Options struct {
	NodeName string
	Configs  *config.Watcher
	// Source gives the first machine before Run is called.
	Source health.Source
	// Vendors are those whose GPUs the node may have. GPUs are polled and watched,
	// and asked who uses them; none for a replayed machine.
	Vendors devgpu.Vendors
	GPUs    devgpu.Pollers
	// Processes knows the containers of processes.
	Processes cgroup.Proc
	// Generator makes the driver's static CDI spec.
	Generator devgpu.EditsGenerator
	Strategy  gpu.Strategy
	Features  devgpu.Features

	KubeletDir, CDIDir, StateDir, DevRoot string
	Takeover                              bool
	// Release lets go of the driver, nil for a replayed machine, which has none.
	// Released is the release that the process starts under.
	Release  *host.Release
	Released release.Request
	// API is nil without an API server.
	API *apiserver.Client
	// Hook is heddle-cdi-hook's path on the node; empty without.
	Hook string
	// Limiter makes the limits of shares hold; nil does not.
	Limiter Limiter

	Interval time.Duration
	// Registerer gets the metrics of the node, PodRegisterer those that name pods.
	Registerer, PodRegisterer prometheus.Registerer
	Log                       *slog.Logger

	// now is the device state's clock; nil is the true one.
	now func() time.Time
}

// core is what all parts of the agent work with. It does not change after New,
// but for the inventory.
type core struct {
	Options
	state  *devicestate.State
	modes  *gpumode.Tracker
	driver *cdi.DriverSpec
	// driverDue asks for the driver's CDI spec, driverTried is closed after the
	// first try, good or bad.
	driverDue   notify.Signal
	driverTried chan struct{}
	// now is the inventory of the last round.
	now atomic.Pointer[inventory.Inventory]
}

func (c *core) config() *config.NodeConfig { return c.now.Load().Config }

func (c *core) machine() *machine.Machine { return c.now.Load().Machine }

// driverKnown reports whether the driver's CDI spec has been tried.
func (c *core) driverKnown() bool {
	select {
	case <-c.driverTried:
		return true
	default:
		return false
	}
}

// sharing reports whether the node shares GPUs, or did.
func (c *core) sharing() bool {
	return c.config().Mode == config.ModeSGPU || c.modes.Any(config.ModeSGPU)
}

// Agent is the device plugin of one node.
type Agent struct {
	*core
	monitor   *health.Monitor
	pods      podresources.PodResourcesListerClient
	resources *resources
	selectors *selectors
	shares    *shares
	usage     *usageMetrics
	publisher *publisher
	hami      *hamiNode
	releases  *releases

	// kubeletStarted is set when the kubelet may have made its socket.
	kubeletStarted notify.Signal
	// beat is when a round began, by the clock that nothing sets.
	beat atomic.Pointer[time.Time]
	// labels are the last known ones of the Node; the loop's alone.
	labels map[string]string
}

// New wires an Agent, which reaches PodResources through conn; see [kubelet.Dial].
// Nothing runs yet.
func New(o Options, conn *grpc.ClientConn) *Agent {
	if o.now == nil {
		o.now = time.Now
	}
	pods := podresources.NewPodResourcesListerClient(conn)
	a := &Agent{
		core: &core{Options: o, driverDue: notify.New(), driverTried: make(chan struct{})},
		pods: pods, kubeletStarted: notify.New(),
	}
	a.beat.Store(new(time.Now()))
	m := a.Source.Machine()
	c := a.resolve(m)
	a.driver = cdi.NewDriverSpec(o.CDIDir, o.Generator, o.Vendors, o.Log)
	inv := inventory.New(m, c, nil, map[string]string{})
	inv.Channels = a.channels()
	a.now.Store(inv)
	a.monitor = health.New(health.Options{
		Source: o.Source, Config: a.config(), GPUs: o.GPUs, PollInterval: health.DefaultPollInterval, Log: o.Log,
	})
	options := devicestate.Options{
		NodeName: o.NodeName, Kubelet: kubelet.NewReader(pods, o.KubeletDir, o.now), API: o.API,
		CDIDir: o.CDIDir, StateDir: o.StateDir, DevRoot: o.DevRoot, Hook: o.Hook, Log: o.Log, Now: o.now,
	}
	if o.Limiter != nil {
		options.Limiter = o.Limiter
	}
	if o.Strategy != gpu.Envvar {
		// So that a runtime with the vendor's hook adds nothing to the CDI devices.
		options.GPUEnv = o.Vendors.Present(a.machine()).HiddenEnv()
	}
	a.state = devicestate.New(options, a.now.Load())
	a.modes = gpumode.New(o.StateDir, o.Log)
	a.selectors = newSelectors(a.core)
	a.hami = newHAMiNode(a.core)
	a.shares = newShares(a.core, a.hami)
	a.resources = newResources(a.core, a.pods, a.selectors, a.shares)
	a.usage = newUsageMetrics(a.core)
	a.publisher = newPublisher(a.core, a.resources)
	a.releases = newReleases(a.core, a.monitor)
	o.Registerer.MustRegister(a.monitor, a.modes, a.publisher, a.shares, a.usage.overuse.evicted, measured{a.usage})
	o.PodRegisterer.MustRegister(a.usage)
	return a
}

// Run serves until ctx ends. An error of a resource ends all: a DaemonSet's
// restart is cheaper than a node that serves half.
func (a *Agent) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.monitor.Run(ctx) })
	group.Go(func() error { return a.state.Run(ctx) })
	group.Go(func() error { return a.writeDriverSpec(ctx) })
	group.Go(func() error { return a.watchKubelet(ctx) })
	group.Go(func() error { return a.watchModes(ctx) })
	group.Go(func() error { return a.selectors.run(ctx) })
	group.Go(func() error { return a.publisher.run(ctx) })
	group.Go(func() error { return a.shares.run(ctx) })
	group.Go(func() error { return a.hami.run(ctx) })
	group.Go(func() error { return a.resources.watch(ctx, a.hami) })
	group.Go(func() error { return a.usage.run(ctx) })
	group.Go(func() error { return a.loop(ctx, group) })
	return group.Wait()
}

// loop runs a round whenever something changed, and by the clock.
func (a *Agent) loop(ctx context.Context, group *errgroup.Group) error {
	a.awaitLabels(ctx)
	tried := a.driverTried
	ticker := time.NewTicker(a.Interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		a.round(ctx, group)
		select {
		case <-ctx.Done():
		case e := <-a.monitor.Events():
			a.API.Record(e)
		case <-a.monitor.Changed():
		case <-a.Configs.Changed():
		case <-a.API.Changed():
		case <-a.state.Changed():
		case <-a.modes.Changed():
		case <-a.Release.ClosedChanged():
		case <-tried:
			tried = nil
		case <-ticker.C:
		}
	}
	return nil
}

// awaitLabels waits for the Node's labels if the configuration depends on
// them: what is served by another configuration cannot be taken back from the
// pods that came in between.
func (a *Agent) awaitLabels(ctx context.Context) {
	if !a.API.Online() || !a.Configs.Current().NeedsLabels(a.NodeName) {
		return
	}
	timeout := time.After(labelsTimeout)
	for a.API.Labels() == nil {
		select {
		case <-ctx.Done():
			return
		case <-a.API.Changed():
		case <-timeout:
			a.Log.WarnContext(ctx, "labels of the node are not known, and the configuration selects by them")
			return
		}
	}
}

func (a *Agent) round(ctx context.Context, group *errgroup.Group) {
	a.beat.Store(new(time.Now()))
	c := a.resolve(a.monitor.Snapshot().Machine)
	a.monitor.Configure(c)
	// The machine that health was judged of, so that no part is ahead of another.
	m := c.Serving(a.monitor.Snapshot().Machine)
	if text, known := a.API.Annotation(wellknown.CordonedGPUs); known {
		a.modes.Cordon(text)
	}
	withdrawals := a.modes.Round(m, c)
	lasting := a.releases.round(m)
	inv := a.inventory(m, c, lasting)
	a.state.Update(inv)
	if reason := a.state.Unwritable(); reason != "" {
		inv = inv.AllUnavailable(reason)
	}
	a.now.Store(inv)
	a.driverDue.Notify()
	a.resources.update(ctx, group, inv)
	a.modes.Published(withdrawals)
	a.publisher.update(a.monitor.Snapshot(), a.modes.GPUs(), lasting)
	a.hami.setOpen(a.resources.sharesFollowed())
	a.hami.report()
	a.shares.woken.Notify()
}

// resolve takes the configuration of this node, and its names for the machine's GPUs. Labels that were known stay
// so: a Node that is deleted, and that its kubelet creates again, must not have
// another configuration for a moment.
func (a *Agent) resolve(m *machine.Machine) *config.NodeConfig {
	labels := a.API.Labels()
	if labels != nil {
		a.labels = labels
	}
	c := a.Configs.Current().Resolve(a.NodeName, a.labels).For(m)
	return &c
}
