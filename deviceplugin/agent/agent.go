// Package agent composes the device plugin of a node: health, the modes of GPUs,
// the resources that the machine and the configuration call for, the device state,
// and what is published about them.
//
// Its loop makes a [publish.Round] in every round and passes it to every part. It
// decides nothing about devices. A resource, once served, is served until the process
// ends, with no devices if need be: a kubelet must never lose the plugin of an ID that
// a pod holds.
package agent

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/claims"
	"github.com/heddle-dev/heddle/deviceplugin/devicestate"
	"github.com/heddle-dev/heddle/deviceplugin/gpumode"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/inventory"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/publish"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	devgpu "github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/internal/notify"
)

// labelsTimeout bounds how long a start waits for the Node's labels if the configuration depends on
// them. After it devices are served anyway: the API server may be away for hours.
const labelsTimeout = 10 * time.Second

// actEvery is the longest time between two writes of what the API server and the containers have, actRetry that after
// an error, and actPause the shortest: many pods start at once. actFirst bounds how long the first write waits for the
// kubelet to register the resources: without the wait each start writes twice.
const (
	actEvery = 10 * time.Second
	actRetry = time.Second
	actPause = 200 * time.Millisecond
	actFirst = time.Second
)

// Options configures an Agent.
type Options struct {
	NodeName string
	Configs  *config.Watcher
	// Source gives the first machine before Run is called.
	Source health.Source
	// Vendors are the vendors of the GPUs that the node may have. GPUs are polled and watched,
	// and asked who uses them; none for a replayed machine.
	Vendors devgpu.Vendors
	GPUs    devgpu.Pollers
	// Occupied are asked what is on a GPU before a container gets it; none for a replayed machine.
	Occupied devgpu.Sources
	// Processes knows the containers of processes.
	Processes cgroup.Proc
	// Generator makes the driver's static CDI spec.
	Generator devgpu.EditsGenerator
	Strategy  resource.Strategy
	Features  devgpu.Features

	KubeletDir, CDIDir, StateDir, DevRoot string
	// Release closes the driver; nil for a replayed machine, which has no driver. Released is the
	// release in effect when the process starts.
	Release  *host.Release
	Released release.Request
	// API is nil without an API server.
	API *apiserver.Client
	// Claims is the client of the DRA driver, nil without one, and ClaimsDir the directory of its socket, at the same
	// path on the host.
	Claims    kubernetes.Interface
	ClaimsDir string
	// Withdrawn is the ConfigMap of withdrawn nodes; without a name this node never is one.
	Withdrawn types.NamespacedName
	// Hook is heddle-cdi-hook's path on the node; empty without.
	Hook string
	// Limiter makes the limits of shares hold; without one nothing does.
	Limiter Limiter

	Interval time.Duration
	// Registerer gets the metrics of the node, PodRegisterer those that name pods.
	Registerer, PodRegisterer prometheus.Registerer
	Log                       *slog.Logger

	// now is the device state's clock; nil is the real one. patience is how long kubelet.sock may be
	// absent; 0 is [kubeletPatience].
	now      func() time.Time
	patience time.Duration
}

// Agent is the device plugin of one node.
type Agent struct {
	Options
	descs
	state   *devicestate.State
	modes   *gpumode.Tracker
	monitor *health.Monitor
	pods    podresources.PodResourcesListerClient

	driver    *driver
	releases  *releases
	resources *resources
	shares    *shares
	meter     *meter
	publisher *publish.Publisher
	rejects   *rejects
	// claims is the DRA driver; nil without one.
	claims *claims.Driver

	// last is the last round; found is set when there is another.
	last  atomic.Pointer[publish.Round]
	found notify.Signal
	// beat is the start of the last round, by the monotonic clock.
	beat atomic.Pointer[time.Time]
	// kubeletStarted is set when the kubelet may have made its socket.
	kubeletStarted notify.Signal
	// labels and annotations are the last known ones of the Node; the loop's alone.
	labels, annotations map[string]string
}

// New wires an Agent, which reaches PodResources through conn; see [kubelet.Dial].
// Nothing runs yet.
func New(o Options, conn *grpc.ClientConn) *Agent {
	if o.now == nil {
		o.now = time.Now
	}
	o.patience = cmp.Or(o.patience, kubeletPatience)
	a := &Agent{
		Options: o, descs: nodeMetrics(), pods: podresources.NewPodResourcesListerClient(conn),
		found: notify.New(), kubeletStarted: notify.New(),
	}
	a.beat.Store(new(time.Now()))
	m := a.Source.Machine()
	c := a.resolve(m)
	a.driver = &driver{
		Options: &a.Options, spec: cdi.NewDriverSpec(o.CDIDir, o.Generator, o.Vendors, o.Log), last: &a.last,
		due: notify.New(), tried: notify.New(),
	}
	inv := inventory.New(m, c, nil, map[string]string{})
	inv.Channels = a.driver.imexChannels()
	a.monitor = health.New(health.Options{
		Source: o.Source, Config: c, GPUs: o.GPUs, PollInterval: health.DefaultPollInterval, Log: o.Log,
	})
	options := devicestate.Options{
		NodeName: o.NodeName, Kubelet: kubelet.NewReader(a.pods, o.KubeletDir, o.now), API: o.API,
		CDIDir: o.CDIDir, StateDir: o.StateDir, DevRoot: o.DevRoot, Hook: o.Hook,
		GPUs: o.Occupied, Processes: o.Processes, Log: o.Log, Now: o.now,
	}
	if o.Limiter != nil {
		options.Limiter = o.Limiter
	}
	if o.Strategy != resource.Envvar {
		// So that a runtime with the vendor's hook adds nothing to the CDI devices.
		options.GPUEnv = o.Vendors.Present(inv.Machine).HiddenEnv()
	}
	a.state = devicestate.New(options, inv)
	a.modes = gpumode.New(o.StateDir, o.Log)
	a.releases = newReleases(&a.Options)
	a.resources = &resources{
		Options: &a.Options, state: a.state, driver: a.driver.spec, pods: a.pods,
		requests:   &requests{Options: &a.Options, state: a.state, last: &a.last},
		registered: notify.New(), running: map[string]*running{},
	}
	a.rejects = newRejects(&a.Options, a.state, &a.last)
	before := a.newRound(inv, &health.Snapshot{Machine: inv.Machine}, nil, release.Request{})
	before.Wanted = a.resources.wanted(before)
	a.last.Store(before)
	a.shares = newShares(&a.Options, a.state)
	a.meter = newMeter(&a.Options, a.state, &a.last)
	a.publisher = publish.New(publish.Options{
		API: o.API, State: a.state, PodResources: a.pods, Processes: o.Processes, Session: o.Release, Log: o.Log,
		Last: &a.last, Registerer: o.Registerer,
	})
	if o.Claims != nil {
		a.claims = claims.New(claims.Options{
			NodeName: o.NodeName, Client: o.Claims, Dir: o.ClaimsDir, KubeletDir: o.KubeletDir, State: a.state,
			Names: a.driver.spec.Names, Log: o.Log,
		})
	}
	o.Registerer.MustRegister(a.monitor, a)
	o.PodRegisterer.MustRegister(a.meter)
	return a
}

// Run serves until ctx ends. An error of a resource ends all: a DaemonSet's restart is
// cheaper than a node that serves half.
func (a *Agent) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{
		a.monitor.Run, a.state.Run, a.driver.run, a.watchKubelet, a.watchHeld,
		a.act, a.meter.run,
	} {
		group.Go(func() error { return run(ctx) })
	}
	if a.claims != nil {
		group.Go(func() error { return a.claims.Run(ctx) })
	}
	if a.shares.hami != nil {
		group.Go(func() error { return a.shares.hami.Run(ctx) })
	}
	group.Go(func() error { return a.loop(ctx, group) })
	return group.Wait()
}

// statePause collects what containers and claims that start change: a round costs more than a start.
const statePause = time.Second

// loop runs a round whenever something changed, and by the clock.
func (a *Agent) loop(ctx context.Context, group *errgroup.Group) error {
	a.awaitLabels(ctx)
	ticker := time.NewTicker(a.Interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		a.round(ctx, group)
		var soon <-chan time.Time
		for waits := true; waits; {
			waits = false
			select {
			case <-ctx.Done():
			case <-a.monitor.Changed():
			case <-a.Configs.Changed():
			case <-a.API.Changed():
			case <-a.state.Changed():
				if waits = true; soon == nil {
					soon = time.After(statePause)
				}
			case <-soon:
			case <-a.modes.Changed():
			case <-a.resources.registered:
				a.resources.noteRegistrations()
			case <-a.Release.ClosedChanged():
			case <-a.driver.tried:
			case <-a.rejects.changed:
			case <-ticker.C:
			}
		}
	}
	return nil
}

// act publishes every round, and reconciles shares, until ctx ends, apart from the loop: a slow API server must
// not hold back the health of a device.
func (a *Agent) act(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-a.found: // Before the first round nothing is known.
	}
	late := time.After(actFirst)
	for waits := true; waits && !a.last.Load().Registered(); {
		select {
		case <-a.found:
		case <-ctx.Done():
			waits = false
		case <-late:
			waits = false
		}
	}
	for ctx.Err() == nil {
		_, pods, _ := a.API.Pods()
		a.rejects.look(ctx)
		next := a.shares.reconcile(ctx, a.last.Load(), a.publisher.Publish(ctx, actEvery))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(actPause):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.found:
		case <-pods:
		case <-time.After(next):
		}
	}
	return nil
}

// awaitLabels waits for the Node if the configuration depends on its labels or annotations: devices served
// under another configuration cannot be taken back from pods that started meanwhile.
func (a *Agent) awaitLabels(ctx context.Context) {
	c := a.Configs.Current()
	own := c.Resolve(a.NodeName, nil)
	hami := own.Mode == config.ModeSGPU && own.SGPU.HAMi == config.HAMiAuto &&
		own.Domains.Vendor != wellknown.DefaultDomains().Vendor
	if !a.API.Online() || !hami && !c.NeedsLabels(a.NodeName) {
		return
	}
	timeout := time.After(labelsTimeout)
	for a.API.Labels() == nil {
		select {
		case <-ctx.Done():
			return
		case <-a.API.Changed():
		case <-timeout:
			a.Log.WarnContext(ctx, "the node is not known, and the configuration depends on it")
			return
		}
	}
}
