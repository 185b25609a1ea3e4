// Package agent composes the device plugin of a node: health, the resources
// that the machine and the configuration call for, the binder, and what the
// Node is told about them.
//
// It decides nothing about devices and speaks to no kubelet itself; it only
// keeps the parts in step. A resource, once served, is served until the
// process ends, with no devices if need be: a kubelet must never lose the
// plugin of an ID that a pod holds.
package agent

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/binder"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/mode"
	"github.com/heddle-dev/heddle/deviceplugin/resource/gpu"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/sharing/hami"
	"github.com/heddle-dev/heddle/sharing/quota"
)

// labelsTimeout is how long a start waits for the Node's labels if the
// configuration depends on them. Then devices are served all the same: the
// API server may be away for hours.
const labelsTimeout = 10 * time.Second

// askTimeout bounds a question that a round, or a resource that starts, waits for.
const askTimeout = time.Second

// Configs is where the configuration comes from; config.Watcher.
type Configs interface {
	Current() *config.Config
	Err() error
	Changed() <-chan struct{}
}

// Options are what an Agent is made of.
type Options struct {
	NodeName string
	Configs  Configs
	// Source gives the first machine before Run is called.
	Source health.Source
	// Poll is as in health.Options.
	Poll func(context.Context) []NVMLPulse
	// Usage asks all GPUs who uses them, Processes whose those are; nil does not
	// tell what containers use.
	Usage     func(context.Context) []NVMLUsage
	Processes Processes
	// Generator makes the driver's static CDI spec.
	Generator gpu.Generator
	Strategy  gpu.Strategy
	Features  gpu.Features

	KubeletDir, CDIDir, StateDir, DevRoot string
	Takeover                              bool
	// API is nil without an API server.
	API *apiserver.Client
	// Limiter makes the limits of shares hold; nil does not.
	Limiter Limiter

	Interval   time.Duration
	Registerer prometheus.Registerer
	Log        *slog.Logger

	// now is the binder's clock; nil is the true one.
	now func() time.Time
}

// Agent is the device plugin of one node.
type Agent struct {
	Options

	monitor *health.Monitor
	binder  *binder.Binder
	driver  *driver
	modes   *mode.Tracker
	pods    podresources.PodResourcesListerClient
	// kubelet is set when a plugin registered or a kubelet follows its list.
	kubelet notify.Signal
	short   *shortages
	steer   *steering
	tenancy *tenancy
	usage   *usageMetrics
	// bridge is nil without an API server.
	bridge *hami.Plugin
	// now is the inventory of the last round.
	now atomic.Pointer[inventory.Inventory]
	// tell wakes the loop that tells the Node; its capacity is one.
	tell chan struct{}

	// toldWithoutCDI is loop's alone: the log says that no shares are served.
	toldWithoutCDI bool

	// beat is when a round began, in Unix nanoseconds.
	beat atomic.Int64

	// mu guards what follows.
	mu     sync.Mutex
	served map[string]*served
	labels map[string]string
	// named tells whether the Node's status names percents, as far as that is
	// learned.
	named, learned bool
}

var _ http.Handler = (*Agent)(nil)

// served is one resource and its plugin.
type served struct {
	plugin *server.Plugin
	// refresh makes the resource look again, reason says why not all of it can
	// be had.
	refresh func(*inventory.Inventory)
	reason  func() string
	// gpu is the resource if it is one of GPUs; shared tells whether it is one of
	// slots of shared GPUs.
	gpu    *gpu.Resource
	shared bool
	past   past
}

// New wires an Agent. Nothing runs yet.
func New(o Options, pods podresources.PodResourcesListerClient) *Agent {
	a := &Agent{Options: o, pods: pods, kubelet: notify.New(), served: map[string]*served{}, tell: make(chan struct{}, 1)}
	a.beat.Store(time.Now().UnixNano())
	a.now.Store(inventory.New(a.Source.Machine(), a.resolve(), nil, map[string]string{}))
	a.monitor = health.New(health.Options{
		Source: o.Source, Config: a.config, Poll: o.Poll, Recorder: o.API, Registerer: o.Registerer, Log: o.Log,
	})
	options := binder.Options{
		Machine: a.machine, Config: a.config, Against: func(h *machine.HCA) string { return a.now.Load().HCAUnhealthy(h) },
		PodResources: pods, Checkpoint: checkpoint(o.KubeletDir), Sockets: sockets(o.KubeletDir),
		Scheduler: hamiScheduler{a},
		NodeName:  o.NodeName, Cards: func() []quota.GPU { return a.now.Load().Shared },
		CardEdits: func(uuid string) (*specs.ContainerEdits, error) { return a.driver.CardEdits(uuid) },
		CDIDir:    o.CDIDir, StateDir: o.StateDir, DevRoot: o.DevRoot, Log: o.Log, Now: o.now,
	}
	if o.Limiter != nil {
		options.Limits = o.Limiter
	}
	if o.API.Online() {
		options.PodSpecs, options.Events = podSpecs{o.API}, podSpecs{o.API}
		options.Known = func(pod binder.Pod) (*corev1.Pod, bool) { return o.API.Watched(kubelet.Pod(pod)) }
	}
	if o.Strategy != gpu.Envvar {
		// So that a runtime with NVIDIA's hook adds nothing to the CDI devices.
		options.GPUEnv = []string{"NVIDIA_VISIBLE_DEVICES=void"}
	}
	a.binder = binder.New(options)
	a.modes = mode.New(mode.Options{StateDir: o.StateDir, Log: o.Log})
	a.driver = newDriver(gpu.NewDriverSpec(o.CDIDir, o.Generator, o.Log), a.machine, o.Log)
	a.steer = &steering{
		api: o.API, binder: a.binder,
		machine: a.machine, config: a.config, started: make(chan started, maxStarted), log: o.Log,
	}
	a.tenancy = newTenancy(a)
	a.bridge = a.newBridge()
	a.short = newShortages()
	a.usage = newUsageMetrics(a)
	o.Registerer.MustRegister(a.short, newBound(a), a.modes, a.usage, newMPSMetrics(a))
	return a
}

// Monitor is the health of the node, for whoever has events for it.
func (a *Agent) Monitor() *health.Monitor { return a.monitor }

// Run serves until ctx ends. An error of a resource ends all: a DaemonSet's
// restart is cheaper than a node that serves half.
func (a *Agent) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.monitor.Run(ctx) })
	group.Go(func() error { return a.binder.Run(ctx) })
	group.Go(func() error { return a.driver.run(ctx) })
	group.Go(func() error { return a.watchModes(ctx) })
	group.Go(func() error { return a.steer.run(ctx) })
	group.Go(func() error { return a.publishLoop(ctx) })
	group.Go(func() error { return a.tenancy.run(ctx) })
	group.Go(func() error { return a.runBridge(ctx) })
	group.Go(func() error { return a.watchPlugins(ctx) })
	group.Go(func() error { return a.usage.run(ctx) })
	group.Go(func() error { return a.loop(ctx, group) })
	return group.Wait()
}

// loop looks again whenever something changed, and by the clock.
func (a *Agent) loop(ctx context.Context, group *errgroup.Group) error {
	a.awaitLabels(ctx)
	changed := a.monitor.Subscribe()
	ready := a.driver.ready
	ticker := time.NewTicker(a.Interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		a.round(ctx, group)
		select {
		case <-ctx.Done():
		case <-changed:
		case <-a.Configs.Changed():
		case <-a.API.Changed():
		case <-a.binder.Changed():
		case <-a.modes.Changed():
		case <-ready:
			ready = nil
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
	timer := time.NewTimer(labelsTimeout)
	defer timer.Stop()
	for a.API.Labels() == nil {
		select {
		case <-ctx.Done():
			return
		case <-a.API.Changed():
		case <-timer.C:
			a.Log.WarnContext(ctx, "the Node's labels are not known, and the configuration has entries that ask for them")
			return
		}
	}
}

func (a *Agent) round(ctx context.Context, group *errgroup.Group) {
	a.beat.Store(time.Now().UnixNano())
	m, c := a.latest(), a.resolve()
	a.cordon()
	a.learnCounted(ctx, c)
	withdrawals := a.modes.Round(m, c)
	inv := a.inventory(m, c)
	a.now.Store(inv)
	a.tellWithoutCDI(ctx)
	a.driver.wake()
	// What containers have is served too: without that they could not start
	// again once the configuration has other names.
	gpus, hcas, slots := a.binder.Recorded()
	for _, name := range slices.Concat(a.wanted(inv), gpus, hcas, slots) {
		a.mu.Lock()
		_, running := a.served[name]
		a.mu.Unlock()
		isHCAs := rdmaAt(c, name) >= 0 || slices.Contains(hcas, name)
		// The answer to Allocate names what comes with every GPU, and the
		// driver's spec says what that is; and the first list must be whole.
		if running || !isHCAs && (!a.driver.known() || !a.modes.Known()) {
			continue
		}
		var s *served
		switch {
		case isHCAs:
			s = a.serveHCAs(name)
		case name == c.Resources.SGPU || slices.Contains(slots, name):
			s = a.serveSlots(name)
		case slices.Contains(a.shareNames(c), name):
			s = a.serveCounted(name, c)
		default:
			s = a.serveGPUs(name)
		}
		a.mu.Lock()
		a.served[name] = s
		a.mu.Unlock()
		group.Go(func() error { return a.run(ctx, name, s.plugin) })
	}
	for _, s := range a.all() {
		s.refresh(inv)
	}
	a.modes.Published(withdrawals)
	a.short.set(a.shortages(inv))
	a.tellHAMi()
	a.tenancy.wake()
	signal(a.tell)
}

// all are the resources that are served, by name.
func (a *Agent) all() map[string]*served {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.served)
}

// wanted are the resources that the configuration calls for on this machine.
func (a *Agent) wanted(inv *inventory.Inventory) []string {
	names := append(gpu.Names(inv), a.shareNames(inv.Config)...)
	for i := range inv.Config.RDMA.Resources {
		names = append(names, inv.Config.RDMA.Resources[i].Name)
	}
	return names
}

// resolve takes the configuration of this node. Labels that were known stay
// so: a Node that somebody deletes, and whose kubelet makes it anew, must not
// have another configuration for a moment.
func (a *Agent) resolve() *config.NodeConfig {
	labels := a.API.Labels()
	a.mu.Lock()
	defer a.mu.Unlock()
	if labels != nil {
		a.labels = labels
	}
	c := a.Configs.Current().Resolve(a.NodeName, a.labels)
	return &c
}

func (a *Agent) config() *config.NodeConfig { return a.now.Load().Config }

func (a *Agent) machine() *machine.Machine { return a.now.Load().Machine }

// signal fills a channel of capacity one, or leaves it full.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
