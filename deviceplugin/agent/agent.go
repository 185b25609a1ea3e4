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
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/deviceplugin/binder"
	"github.com/heddle-dev/heddle/deviceplugin/gpu"
	"github.com/heddle-dev/heddle/deviceplugin/health"
	"github.com/heddle-dev/heddle/deviceplugin/plugin"
)

// Configs is where the configuration comes from; config.Watcher.
type Configs interface {
	Current() *config.Config
	Err() error
	Changed() <-chan struct{}
}

// Publisher tells the Node. Its calls are off the path of every pod.
type Publisher interface {
	// Publish sets the condition and the annotation, if they differ.
	Publish(ctx context.Context, c health.Condition, topology string) error
	// Labels are the Node's, for overrides by nodeSelector; nil while unknown.
	Labels() map[string]string
}

// Options are what an Agent is made of.
type Options struct {
	NodeName string
	Configs  Configs
	// Source gives the first machine before Run is called.
	Source health.Source
	// Poll is as in health.Options.
	Poll func(context.Context) []NVMLPulse
	// Generator makes the driver's static CDI spec.
	Generator gpu.Generator
	Strategy  gpu.Strategy
	Features  gpu.Features

	KubeletDir, CDIDir, StateDir, DevRoot string
	Takeover                              bool
	// PodSpecs, BinderEvents, Recorder and Publisher may be nil: no API server.
	PodSpecs     binder.PodSpecs
	BinderEvents binder.Events
	Recorder     health.Recorder
	Publisher    Publisher

	Interval   time.Duration
	Registerer prometheus.Registerer
	Log        *slog.Logger
}

// Agent is the device plugin of one node.
type Agent struct {
	Options

	monitor *health.Monitor
	binder  *binder.Binder
	driver  *gpu.DriverSpec
	pods    PodResourcesClient
	short   *shortages
	// tell wakes the loop that tells the Node; its capacity is one.
	tell chan struct{}

	// beat is when a round began, in Unix nanoseconds.
	beat atomic.Int64

	// mu guards what follows.
	mu     sync.Mutex
	served map[string]*served
	cfg    *config.NodeConfig
	// whole is the resource of whole GPUs, once served.
	whole *gpu.Resource
}

// served is one resource and its plugin.
type served struct {
	plugin *plugin.Plugin
	// refresh makes the resource look again, faults say why its IDs are bad.
	refresh func()
	reason  func() string
}

// New wires an Agent. Nothing runs yet.
func New(o Options, pods PodResourcesClient) *Agent {
	a := &Agent{Options: o, pods: pods, served: map[string]*served{}, tell: make(chan struct{}, 1)}
	a.short = newShortages(o.Registerer)
	a.resolve()
	a.monitor = health.New(health.Options{
		Source: o.Source, Config: a.config, Poll: o.Poll, Recorder: o.Recorder, Registerer: o.Registerer, Log: o.Log,
	})
	options := binder.Options{
		Machine: a.machine, Config: a.config, Against: a.against,
		PodResources: pods, Checkpoint: checkpoint(o.KubeletDir),
		PodSpecs: o.PodSpecs, Events: o.BinderEvents,
		CDIDir: o.CDIDir, StateDir: o.StateDir, DevRoot: o.DevRoot, Log: o.Log,
	}
	if o.Strategy != gpu.Envvar {
		// So that a runtime with NVIDIA's hook adds nothing to the CDI devices.
		options.GPUEnv = []string{"NVIDIA_VISIBLE_DEVICES=void"}
	}
	a.binder = binder.New(options)
	a.driver = gpu.NewDriverSpec(o.CDIDir, o.Generator, o.Log)
	return a
}

// Monitor is the health of the node, for whoever has events for it.
func (a *Agent) Monitor() *health.Monitor { return a.monitor }

// Binder knows who has what.
func (a *Agent) Binder() *binder.Binder { return a.binder }

// Run serves until ctx ends. An error of a resource ends all: a DaemonSet's
// restart is cheaper than a node that serves half.
func (a *Agent) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.monitor.Run(ctx) })
	group.Go(func() error { return a.binder.Run(ctx) })
	group.Go(func() error { return a.publishLoop(ctx) })
	group.Go(func() error { return a.loop(ctx, group) })
	return group.Wait()
}

// loop looks again whenever something changed, and by the clock.
func (a *Agent) loop(ctx context.Context, group *errgroup.Group) error {
	changed := a.monitor.Subscribe()
	ticker := time.NewTicker(a.Interval)
	defer ticker.Stop()
	for {
		a.round(ctx, group)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-a.Configs.Changed():
		case <-a.binder.Changed():
		case <-ticker.C:
		}
	}
}

func (a *Agent) round(ctx context.Context, group *errgroup.Group) {
	a.beat.Store(time.Now().UnixNano())
	a.resolve()
	m, c := a.machine(), a.config()
	if err := a.driver.Update(ctx, m); err != nil {
		a.Log.WarnContext(ctx, "the driver's CDI spec is incomplete", "err", err)
	}
	for _, name := range a.wanted(m, c) {
		if _, running := a.served[name]; !running {
			s := a.serve(name, c)
			a.mu.Lock()
			a.served[name] = s
			a.mu.Unlock()
			group.Go(func() error {
				if err := s.plugin.Run(ctx); err != nil {
					return fmt.Errorf("serve %s: %w", name, err)
				}
				return nil
			})
		}
	}
	for _, s := range a.served {
		s.refresh()
	}
	a.short.set(a.shortages(m, c))
	select {
	case a.tell <- struct{}{}:
	default:
	}
}

// wanted are the resources that the configuration calls for on this machine.
func (a *Agent) wanted(m *machine.Machine, c *config.NodeConfig) []string {
	names := gpu.Names(m, c)
	for i := range c.RDMA.Resources {
		names = append(names, c.RDMA.Resources[i].Name)
	}
	return names
}

// resolve takes the configuration of this node.
func (a *Agent) resolve() {
	var labels map[string]string
	if a.Publisher != nil {
		labels = a.Publisher.Labels()
	}
	c := a.Configs.Current().Resolve(a.NodeName, labels)
	a.mu.Lock()
	a.cfg = &c
	a.mu.Unlock()
}

func (a *Agent) config() *config.NodeConfig {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cfg
}

// machine is what health was judged by, so that no part is ahead of another.
func (a *Agent) machine() *machine.Machine {
	if a.monitor != nil {
		if m := a.monitor.Snapshot().Machine; m != nil {
			return m
		}
	}
	return a.Source.Machine()
}
