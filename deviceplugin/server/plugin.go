// Package server owns the life of one resource on the kubelet's socket: it
// serves, registers, notices that the kubelet is another one, and stops. It
// keeps the list of devices that the kubelet sees, with the rule that an ID
// once advertised stays listed until no pod holds it. It knows no devices, and
// never reads hardware or the API server.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/internal/notify"
)

// DefaultKubeletDir is the kubelet's --root-dir.
const DefaultKubeletDir = "/var/lib/kubelet"

const (
	// linger is how long an ID stays listed at least after it was withdrawn;
	// see ledger.
	linger = time.Minute
	// askTimeout bounds a question to Holders or Claimed.
	askTimeout = 2 * time.Second
)

// Options of a Plugin.
type Options struct {
	// Name is the resource, such as nvidia.com/gpu.
	Name string
	// KubeletDir is the kubelet's directory; "" is DefaultKubeletDir.
	KubeletDir string
	Resource   Resource
	// Holders lists the device IDs of this resource that pods hold. It must
	// show what the kubelet handed out before the call began, more than a
	// minute ago. Nil, or an error, keeps IDs listed.
	Holders func(ctx context.Context) (map[string]bool, error)
	// Claimed names who else serves the resource, "" for nobody: see Rival.
	// While it names somebody the resource is not registered for the first
	// time. An error means nobody: with the API server away, devices must
	// still be served. Nil means nobody.
	Claimed func(ctx context.Context) (owner string, err error)
	// Takeover registers no matter what Claimed says.
	Takeover bool
	// Registered is called after each registration, and returns at once. Nil is
	// nobody.
	Registered func()
	// Streamed is called after a kubelet began to follow the list or ceased to,
	// and returns at once. Nil is nobody.
	Streamed func()
	// SkipPreStart and SkipPrefer tell the kubelet not to make these calls.
	SkipPreStart, SkipPrefer bool
	// Log gets changes and faults; nil discards.
	Log *slog.Logger
	// Registerer gets the metrics while the Plugin runs; nil means none.
	Registerer prometheus.Registerer
}

// Plugin serves one resource. Its methods may be called from any goroutine.
type Plugin struct {
	options Options
	dir     string
	log     *slog.Logger
	ledger  *ledger
	metrics *metrics

	// mu guards status.
	mu     sync.Mutex
	status Status
}

// Status is what a Plugin is doing now.
type Status struct {
	Resource string
	// Registered tells whether the running kubelet took our registration, and
	// Socket where it calls us.
	Registered bool
	Socket     string
	// Owner is who else serves the resource. Unless Registered, we wait for
	// him.
	Owner string
	// Fault is why the last try to register failed, "" when it did not.
	Fault string
	// Streams counts the kubelets that follow the list: while there is none, the
	// node's kubelet would refuse for good who is sent to it.
	Streams int
	// Capacity and Allocatable count listed and healthy devices, Withdrawn
	// those that only wait for their holders.
	Capacity, Allocatable, Withdrawn int
}

// New returns a Plugin that does nothing yet.
func New(o Options) *Plugin {
	if o.KubeletDir == "" {
		o.KubeletDir = DefaultKubeletDir
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	return &Plugin{
		options: o, dir: filepath.Join(o.KubeletDir, pluginDir),
		log: o.Log.With("resource", o.Name), ledger: newLedger(), status: Status{Resource: o.Name},
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
	m, done, err := newMetrics(p.ledger, registerer)
	if err != nil {
		return fmt.Errorf("resource %s: %w", p.options.Name, err)
	}
	defer done()
	p.metrics = m
	if err := sweep(ctx, p.dir, p.options.Name); err != nil {
		p.log.Warn("old sockets stay", "err", err)
	}
	p.ledger.update(p.options.Resource.Devices())
	known := p.askHolders(ctx)

	wake := notify.New()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		watchDir(ctx, p.dir, wake, p.log)
		return nil
	})
	group.Go(func() error {
		p.keep(ctx, known)
		return nil
	})
	group.Go(func() error { return p.supervisor(wake).run(ctx) })
	if err := group.Wait(); err != nil {
		return fmt.Errorf("resource %s: %w", p.options.Name, err)
	}
	return nil
}

func (p *Plugin) streamed() {
	if p.options.Streamed != nil {
		p.options.Streamed()
	}
}

// Status reports what the Plugin is doing now.
func (p *Plugin) Status() Status {
	c := p.ledger.counts()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	s.Capacity, s.Allocatable, s.Withdrawn, s.Streams = c.capacity, c.allocatable, c.withdrawn, c.streams
	return s
}

// Drain withdraws all devices for good and waits until none is listed: none is
// held, none is being allocated, and the kubelet has had a minute. The Plugin
// goes on to serve until Run's context ends.
func (p *Plugin) Drain(ctx context.Context) error {
	p.ledger.drain()
	for {
		now := p.ledger.current()
		if len(now.devices) == 0 {
			return nil
		}
		select {
		case <-now.next:
		case <-ctx.Done():
			return fmt.Errorf("drain %s: %d devices are still listed: %w",
				p.options.Name, len(now.devices), context.Cause(ctx))
		}
	}
}

// Resend sends the list once more, as it is. A kubelet writes its checkpoint
// after every list (v1.37 pkg/kubelet/cm/devicemanager/manager.go,
// genericDeviceUpdateCallback), and otherwise only when it allocates; what it
// writes then has no pods that had ended when PodResources was last asked.
func (p *Plugin) Resend() { p.ledger.again() }

// keep follows the Resource and the holders of its devices.
func (p *Plugin) keep(ctx context.Context, known bool) {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		select {
		case <-p.options.Resource.Changed():
			p.ledger.update(p.options.Resource.Devices())
		case <-ticker.C:
			p.ledger.update(p.options.Resource.Devices())
			if !known || p.ledger.counts().withdrawn > 0 {
				known = p.askHolders(ctx) || known
			}
		case <-ctx.Done():
			return
		}
	}
}

// askHolders reports whether the answer is known.
func (p *Plugin) askHolders(ctx context.Context) bool {
	if p.options.Holders == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	asked := time.Now()
	holders, err := p.options.Holders(ctx)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			p.metrics.faults.WithLabelValues("holders").Inc()
			p.log.Debug("holders of devices are not known", "err", err)
		}
		return false
	}
	p.ledger.held(holders, asked)
	return true
}

func (p *Plugin) supervisor(wake <-chan struct{}) *supervisor {
	return &supervisor{
		look: func() (identity, bool, error) {
			if orphaned(p.dir) {
				return identity{}, false, fmt.Errorf("%s: %w", p.dir, errDirectoryGone)
			}
			id, there := identify(filepath.Join(p.dir, kubeletSocket))
			return id, there, nil
		},
		open: p.open, claimed: p.claimed, takeover: p.options.Takeover, wake: wake, log: p.log,
		registered: p.noteRegistered, owner: p.noteOwner, failed: p.noteFailure,
	}
}

func (p *Plugin) claimed(ctx context.Context) string {
	if p.options.Claimed == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	owner, err := p.options.Claimed(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		p.metrics.faults.WithLabelValues("claimed").Inc()
		p.log.Warn("it is not known whether somebody else serves the resource", "err", err)
	}
	if err != nil {
		return ""
	}
	return owner
}

func (p *Plugin) noteRegistered(socket string) {
	if p.options.Registered != nil && socket != "" {
		p.options.Registered()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status.Socket, p.status.Registered = socket, socket != ""
	p.metrics.registered.Set(0)
	if socket == "" {
		return
	}
	p.status.Fault = ""
	p.metrics.registered.Set(1)
	p.metrics.registrations.Inc()
	p.log.Info("registered with the kubelet", "socket", filepath.Base(socket))
}

func (p *Plugin) noteOwner(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.metrics.owner(owner)
	if owner == p.status.Owner {
		return
	}
	p.status.Owner = owner
	switch {
	case owner == "":
		p.log.Info("nobody else serves the resource any more")
	case p.options.Takeover:
		p.log.Warn("the resource is taken over from somebody else", "owner", owner)
	case p.status.Registered:
		p.log.Warn("somebody else serves the resource too", "owner", owner)
	default:
		p.log.Warn("the resource is left to somebody else", "owner", owner)
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
	p.log.Warn("not registered", "err", err)
}

// List is what the kubelet is shown now, sorted by ID.
func (p *Plugin) List() []Device {
	var list []Device
	for _, d := range p.ledger.current().devices {
		numa := make([]int64, 0, len(d.GetTopology().GetNodes()))
		for _, node := range d.GetTopology().GetNodes() {
			numa = append(numa, node.GetID())
		}
		list = append(list, Device{ID: d.GetID(), Healthy: d.GetHealth() == v1beta1.Healthy, NUMA: slices.Clip(numa)})
	}
	return list
}
