// Package server owns one resource on the kubelet's socket: it serves, registers,
// notices that the kubelet is another one, and stops. It keeps the list of devices
// that the kubelet sees, with the rule that an ID once advertised stays listed
// until no pod holds it. It leaves a resource to another plugin, or to a
// DeviceClass, that has it. It knows no devices, and never reads hardware.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/internal/notify"
)

const (
	// linger is how long an ID stays listed at least after it was withdrawn;
	// see advertised.
	linger = time.Minute
	// askTimeout bounds the question who else serves the resource, classTimeout
	// the part of it that the API server answers.
	askTimeout   = 2 * time.Second
	classTimeout = time.Second
)

// Options of a Plugin.
type Options struct {
	// Name is the resource, such as nvidia.com/gpu.
	Name string
	// KubeletDir is the kubelet's --root-dir.
	KubeletDir string
	Resource   Resource
	// PodResources is the kubelet's, API the API server: they know who else
	// serves the resource. While another plugin, or a DeviceClass, does, it is not
	// registered for the first time. Either may be nil.
	PodResources podresources.PodResourcesListerClient
	API          *apiserver.Client
	// Changed is set after a registration, and after a kubelet began to follow
	// the list or ceased to; see [Plugin.Status].
	Changed notify.Signal
	// CountedOnly asks the kubelet to call neither GetPreferredAllocation nor
	// PreStartContainer: its devices are counted, and nothing more.
	CountedOnly bool
	// Log gets changes and faults.
	Log *slog.Logger
	// Registerer gets the metrics while the Plugin runs.
	Registerer prometheus.Registerer
}

// Plugin serves one resource. Its methods may be called from any goroutine.
type Plugin struct {
	options Options
	dir     string
	log     *slog.Logger
	list    *advertised
	metrics *metrics
	// retry is set when something changed that decides on registrations.
	retry notify.Signal
	// claimed is as SetClaimed set it.
	claimed atomic.Bool

	// mu guards what follows.
	mu     sync.Mutex
	status Status
	// ownerKnown reports whether it is known which plugin serves the resource,
	// holdersKnown whether it is known which pods hold its devices.
	ownerKnown, holdersKnown bool
}

// Status is the current state of a Plugin.
type Status struct {
	// Registered reports whether the running kubelet took the registration.
	// Registrations counts them.
	Registered    bool
	Registrations int
	// Owner is who else serves the resource. Unless Registered, the plugin waits
	// for it to end.
	Owner string
	// Fault is why the last try to register failed, "" when it did not.
	Fault string
	// Streams counts the kubelets that follow the list: without any, the
	// node's kubelet would fail for good the pods that are sent to it.
	Streams int
	// Capacity and Allocatable count listed and healthy devices, Withdrawn
	// those that only wait for their holders.
	Capacity, Allocatable, Withdrawn int
}

// New returns a Plugin that does nothing yet.
func New(o Options) *Plugin {
	return &Plugin{
		options: o, dir: filepath.Join(o.KubeletDir, pluginDir),
		log: o.Log.With("resource", o.Name), list: newAdvertised(), metrics: newMetrics(), retry: notify.New(),
	}
}

// Run serves the resource until ctx ends, and then returns nil once calls in
// flight have ended, after 10 s at most. It returns an error if the name is
// none, if another Plugin of the Registerer has it, or if the kubelet's
// directory was deleted under its mount. It runs once.
func (p *Plugin) Run(ctx context.Context) error {
	if err := wellknown.CheckResource(p.options.Name); err != nil {
		return fmt.Errorf("resource name: %w", err)
	}
	registerer := prometheus.WrapRegistererWith(prometheus.Labels{"resource": p.options.Name}, p.options.Registerer)
	done, err := p.metrics.register(p.list, registerer)
	if err != nil {
		return fmt.Errorf("resource %s: %w", p.options.Name, err)
	}
	defer done()
	if err := sweep(ctx, p.dir, socketPrefix(p.options.Name)); err != nil {
		p.log.Warn("stale sockets not removed", "err", err)
	}
	p.list.update(p.options.Resource.Devices())
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context){p.follow, p.watchOwner} {
		group.Go(func() error {
			run(ctx)
			return nil
		})
	}
	group.Go(func() error { return p.supervise(ctx) })
	if err := group.Wait(); err != nil {
		return fmt.Errorf("resource %s: %w", p.options.Name, err)
	}
	return nil
}

// Retry has the Plugin look at the kubelet's directory now, and not at its next
// poll: [WatchDir] sees a change for all resources of the node.
func (p *Plugin) Retry() { p.retry.Notify() }

// SetClaimed says whether pods that request the resource get it by ResourceClaims, and the list has no device for
// them. A kubelet that is to call PreStartContainer rejects such pods: it knows none of their devices (1.37,
// devicemanager, callPreStartContainerIfNeeded).
func (p *Plugin) SetClaimed(claimed bool) {
	if p.claimed.Swap(claimed) != claimed {
		p.retry.Notify()
	}
}

// Status reports what the Plugin is doing now.
func (p *Plugin) Status() Status {
	c := p.list.counts()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	s.Capacity, s.Allocatable, s.Withdrawn, s.Streams = c.capacity, c.allocatable, c.withdrawn, c.streams
	return s
}

// follow takes the Resource's devices whenever they change.
func (p *Plugin) follow(ctx context.Context) {
	for {
		select {
		case <-p.options.Resource.Changed():
			p.list.update(p.options.Resource.Devices())
		case <-ctx.Done():
			return
		}
	}
}

// NeedsHolders reports whether [Plugin.SetHolders] should be called: the holders
// are not known, or devices wait for theirs.
func (p *Plugin) NeedsHolders() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.holdersKnown || p.list.counts().withdrawn > 0
}

// SetHolders takes the device IDs that pods hold, from a question that was asked
// at a time: they show what the kubelet allocated more than a minute before
// that. After an error no ID leaves the list. Call it before Run, so that the
// first list has all that pods hold, and then as long as [Plugin.NeedsHolders].
func (p *Plugin) SetHolders(ids map[string]bool, asked time.Time, err error) {
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			p.metrics.faults.WithLabelValues("holders").Inc()
			p.log.Debug("holders of devices are not known", "err", err)
		}
		return
	}
	p.list.held(ids, asked)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holdersKnown = true
}

func (p *Plugin) owner() (owner string, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status.Owner, p.ownerKnown
}

func (p *Plugin) noteRegistered(socket string) {
	defer p.options.Changed.Notify()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Registered = socket != ""
	p.metrics.registered.Set(0)
	if socket == "" {
		return
	}
	p.status.Fault = ""
	p.status.Registrations++
	p.metrics.registered.Set(1)
	p.metrics.registrations.Inc()
	p.log.Info("registered with kubelet", "socket", filepath.Base(socket))
}

func (p *Plugin) noteOwner(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ownerKnown = true
	p.metrics.claimed.Reset()
	if owner != "" {
		p.metrics.claimed.WithLabelValues(owner).Set(1)
	}
	if owner == p.status.Owner {
		return
	}
	p.status.Owner = owner
	switch {
	case owner == "":
		p.log.Info("the conflicting plugin is gone")
	case p.status.Registered:
		p.log.Warn("another plugin serves the resource too", "owner", owner)
	default:
		p.log.Warn("leaving the resource to a conflicting plugin", "owner", owner)
	}
}

func (p *Plugin) noteFailure(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.metrics.faults.WithLabelValues("register").Inc()
	if p.status.Fault == err.Error() {
		return
	}
	p.status.Fault = err.Error()
	if errors.Is(err, errNoKubelet) {
		p.log.Debug("no kubelet to register with", "err", err)
		return
	}
	p.log.Warn("registration failed", "err", err)
}

// InFlight returns the device IDs that calls of Allocate in flight are for, in no order.
func (p *Plugin) InFlight() []string { return p.list.inFlight() }

// IDs returns the listed device IDs, sorted.
func (p *Plugin) IDs() []string {
	var ids []string
	for _, d := range p.list.current().devices {
		ids = append(ids, d.ID)
	}
	return ids
}
