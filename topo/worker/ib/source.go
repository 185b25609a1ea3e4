package ib

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/discovery/bounded"
	"github.com/heddle-dev/heddle/topo/worker"
)

// Options configures a Source.
type Options struct {
	// Open opens one of an HCA's devices by its name: umad0.
	Open func(device string) (Transport, error)
	// Pace is the shortest time between two SMPs of an uplink discovery; 0 is
	// 2 ms. A pass is not slowed: it is two SMPs a port.
	Pace time.Duration
}

// defaultPace makes 500 SMPs a second: a leaf of 64 ports in a quarter of one.
const defaultPace = 2 * time.Millisecond

// Source asks the switches behind InfiniBand ports.
type Source struct {
	open func(device string) (Transport, error)
	pace time.Duration

	// mu guards calls: one entry for each port ever asked. A call with
	// a stuck driver is not repeated.
	mu    sync.Mutex
	calls map[worker.PortKey]*bounded.Call[Neighbor]
}

// New returns a Source.
func New(o Options) *Source {
	if o.Pace <= 0 {
		o.Pace = defaultPace
	}
	return &Source{open: o.Open, pace: o.Pace, calls: map[worker.PortKey]*bounded.Call[Neighbor]{}}
}

// Kind implements [worker.Source].
func (s *Source) Kind() v1alpha1.Source { return v1alpha1.SourceIB }

// Look asks for every InfiniBand port at once.
func (s *Source) Discover(ctx context.Context, q worker.Query) worker.Report {
	var r worker.Report
	if !q.Topology.Uses(config.SourceIB) {
		return r
	}
	type asked struct {
		port *worker.Port
		wait func(context.Context) (Neighbor, error)
	}
	var all []asked
	for i := range q.Ports {
		p := &q.Ports[i]
		switch {
		case p.LinkLayer != machine.InfiniBand:
		case !p.Up():
			r.Without(p.Key(), worker.Unavailable)
		default:
			all = append(all, asked{p, s.call(p.Key()).Start(func() (Neighbor, error) { return s.neighbor(ctx, p) })})
		}
	}
	for _, a := range all {
		n, err := a.wait(ctx)
		report(&r, a.port, n, err)
	}
	return r
}

func (s *Source) call(k worker.PortKey) *bounded.Call[Neighbor] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[k] == nil {
		s.calls[k] = &bounded.Call[Neighbor]{}
	}
	return s.calls[k]
}

// report enters the outcome of one port.
func report(r *worker.Report, p *worker.Port, n Neighbor, err error) {
	name := p.HCA + " port " + strconv.Itoa(int(p.Port))
	switch {
	case err != nil:
		r.Skip(name, err.Error())
		r.Without(p.Key(), worker.Unavailable)
	case n.Type != Switch:
		r.Skip(name, "no switch at the other end of the cable: "+n.Type.String())
	default:
		r.Links = append(r.Links, worker.Link{
			PortKey: p.Key(), Switch: v1alpha1.Switch{ID: GUID(n.GUID), Name: n.Name},
			SwitchPort: strconv.Itoa(n.Port), Confidence: 100,
		})
	}
}

// GUID is how a NodeTopology spells a GUID: 16 lower-case hex digits.
func GUID(g uint64) string { return fmt.Sprintf("%016x", g) }

// neighbor opens the port's device, asks and closes it: what is not held open
// cannot stand in the way of a driver that is unloaded.
func (s *Source) neighbor(ctx context.Context, p *worker.Port) (n Neighbor, err error) {
	err = s.with(ctx, p, func(a *agent) error {
		n, err = a.neighbor(ctx, byte(p.Port)) //nolint:gosec // Port numbers are 1 to 255.
		return err
	})
	return n, err
}

var errNoDevice = errors.New("no umad device; is the kernel module ib_umad loaded?")

// with calls f with an agent on the port's own device.
func (s *Source) with(ctx context.Context, p *worker.Port, f func(*agent) error) error {
	if len(p.UMAD) == 0 {
		return errNoDevice
	}
	var last error
	for _, device := range p.UMAD {
		t, err := s.open(device)
		if err != nil {
			last = openFault(device, err)
			continue
		}
		a := &agent{transport: t}
		switch ok, err := s.owns(ctx, a, p); {
		case err != nil:
			last = fmt.Errorf("%s: %w", device, err)
		case ok:
			return errors.Join(f(a), t.Close())
		}
		if err := t.Close(); err != nil {
			last = fmt.Errorf("%s: %w", device, err)
		}
	}
	if last == nil {
		last = errNoDevice
	}
	return last
}

// owns reports whether the agent's device is the port's. An HCA of several ports
// has as many devices, and only the port itself knows its number.
func (s *Source) owns(ctx context.Context, a *agent, p *worker.Port) (bool, error) {
	if len(p.UMAD) == 1 {
		return true, nil
	}
	self, err := a.nodeInfo(ctx)
	return err == nil && self.LocalPort == int(p.Port), err
}

// openFault names the device once.
func openFault(device string, err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("open %s: %w", device, at.Err)
	}
	return fmt.Errorf("open %s: %w", device, err)
}
