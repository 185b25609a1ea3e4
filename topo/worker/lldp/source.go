package lldp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/worker"
)

// firstFrame is how long a switch may take to send a frame after a socket
// opened or a link came up: the standard's interval is 30 s.
const firstFrame = 35 * time.Second

// Conn receives the LLDP frames of one network device.
type Conn interface {
	// Receive waits for a frame and returns its length; longer ones than b
	// are cut. ErrDown means that the device went down, and may come up again.
	Receive(b []byte) (int, error)
	// Running reports whether the link is up. An error means that this is no
	// longer the device of that name.
	Running() (bool, error)
	// Close ends a Receive that waits.
	Close() error
}

// ErrDown is what [Conn.Receive] returns when the device went down.
var ErrDown = errors.New("the network device is down")

// Options configures a Source.
type Options struct {
	// Listen opens a network device; nil: a packet socket.
	Listen func(netdev string) (Conn, error)
	// Changed is called after a neighbor came, changed or went away. It
	// must not block.
	Changed func()
	// Log gets bad frames at debug level; nil discards.
	Log *slog.Logger
}

// Source listens on the network devices that it is asked about. Close it.
type Source struct {
	listen  func(netdev string) (Conn, error)
	changed func()
	log     *slog.Logger

	// mu guards listeners and what is in them.
	mu        sync.Mutex
	listeners map[string]*listener
}

// listener is one network device.
type listener struct {
	netdev string
	conn   Conn
	table  table
	// since is when frames could first come.
	since time.Time
	// up is what Running reported last.
	up bool
	// done is closed when the goroutine has ended.
	done chan struct{}
	// failed is set when it ended by itself.
	failed bool
}

// New returns a Source that listens nowhere yet.
func New(o Options) *Source {
	s := &Source{listen: o.Listen, changed: o.Changed, log: o.Log, listeners: map[string]*listener{}}
	if s.listen == nil {
		s.listen = Listen
	}
	if s.changed == nil {
		s.changed = func() {}
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

// Kind implements [worker.Source].
func (s *Source) Kind() v1alpha1.Source { return v1alpha1.SourceLLDP }

// Close stops listening everywhere.
func (s *Source) Close() error { return s.follow(nil, nil) }

// Discover reports the neighbors received last, and from now on listens on the devices of
// these ports and no others.
func (s *Source) Discover(_ context.Context, q worker.Query) worker.Report {
	var r worker.Report
	wanted := map[string]bool{}
	var ports []*worker.Port
	if q.Topology.Uses(config.SourceLLDP) {
		for i := range q.Ports {
			if p := &q.Ports[i]; p.LinkLayer == machine.Ethernet {
				ports = append(ports, p)
				for _, netdev := range p.Netdevs {
					wanted[netdev] = true
				}
			}
		}
	}
	failed := map[string]bool{}
	err := s.follow(wanted, func(netdev string, err error) {
		r.Skip(netdev, err.Error())
		failed[netdev] = true
	})
	if err != nil {
		s.log.Debug("closing packet sockets", "err", err)
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	contested := s.contested(now)
	for _, p := range ports {
		s.port(&r, p, now, contested, failed)
	}
	return r
}

// follow makes the listeners those that are wanted.
func (s *Source) follow(wanted map[string]bool, fault func(netdev string, err error)) error {
	var errs []error
	for _, l := range s.stale(wanted) {
		errs = append(errs, l.conn.Close())
		<-l.done
	}
	for _, netdev := range slices.Sorted(maps.Keys(wanted)) {
		s.mu.Lock()
		known := s.listeners[netdev] != nil
		s.mu.Unlock()
		if known {
			continue
		}
		conn, err := s.listen(netdev)
		if err != nil {
			fault(netdev, fmt.Errorf("listen: %w", err))
			continue
		}
		up, err := conn.Running()
		if err != nil {
			fault(netdev, errors.Join(err, conn.Close()))
			continue
		}
		l := &listener{netdev: netdev, conn: conn, since: time.Now(), up: up, done: make(chan struct{})}
		s.mu.Lock()
		s.listeners[netdev] = l
		s.mu.Unlock()
		go s.receive(l)
	}
	return errors.Join(errs...)
}

// stale takes out the listeners that are not wanted or no longer of use, and
// sees which links are up.
func (s *Source) stale(wanted map[string]bool) (gone []*listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for netdev, l := range s.listeners {
		up, err := false, error(nil)
		if !l.failed {
			up, err = l.conn.Running()
		}
		if l.failed || err != nil || !wanted[netdev] {
			delete(s.listeners, netdev)
			gone = append(gone, l)
			continue
		}
		l.link(up)
	}
	return gone
}

// link notes whether the link is up. What was received before it went down is no
// longer known: the cable may be in another port when it comes up.
func (l *listener) link(up bool) {
	if up && !l.up {
		l.since = time.Now()
	}
	if !up {
		l.table = table{}
	}
	l.up = up
}

// receive takes frames until the connection is closed.
func (s *Source) receive(l *listener) {
	defer close(l.done)
	buf := make([]byte, maxFrame)
	for {
		n, err := l.conn.Receive(buf)
		switch {
		case errors.Is(err, ErrDown):
			s.mu.Lock()
			l.link(false)
			s.mu.Unlock()
			s.changed()
			continue
		case err != nil:
			s.mu.Lock()
			l.failed = true
			s.mu.Unlock()
			return
		}
		neighbor, err := Parse(buf[:n])
		if err != nil {
			s.log.Debug("bad LLDP frame", "netdev", l.netdev, "bytes", n, "err", err)
			continue
		}
		s.mu.Lock()
		l.up = true
		changed := l.table.update(neighbor, time.Now())
		s.mu.Unlock()
		if changed {
			s.changed()
		}
	}
}

// contested lists the switch identities that this node receives under two names:
// two switches that were given one address.
func (s *Source) contested(now time.Time) map[ID]bool {
	name, out := map[ID]string{}, map[ID]bool{}
	for _, l := range s.listeners {
		for _, n := range l.table.neighbors(now) {
			if first, ok := name[n.Chassis]; ok && first != n.SystemName {
				out[n.Chassis] = true
			}
			name[n.Chassis] = n.SystemName
		}
	}
	return out
}

// port enters what is known about one port.
func (s *Source) port(r *worker.Report, p *worker.Port, now time.Time, contested map[ID]bool, failed map[string]bool) {
	why := worker.Unknown
	for _, netdev := range p.Netdevs {
		l := s.listeners[netdev]
		if l == nil {
			if failed[netdev] {
				why = worker.Unavailable
			}
			continue
		}
		neighbors := l.table.neighbors(now)
		if len(neighbors) == 0 {
			why = max(why, l.absence(p, now))
			continue
		}
		best := &neighbors[0]
		end := worker.Link{
			PortKey:    p.Key(),
			Switch:     v1alpha1.Switch{ID: best.SwitchID(contested[best.Chassis]), Name: best.SystemName},
			SwitchPort: best.SwitchPort(), Confidence: 100,
		}
		if len(neighbors) > 1 && likelier(best, &neighbors[1]) == 0 {
			end.Confidence = ambiguous
			r.Skip(netdev, fmt.Sprintf("frames of two switches, %s and %s; one cable has one other end",
				best.Chassis.Text, neighbors[1].Chassis.Text))
		}
		r.Links = append(r.Links, end)
		return
	}
	if len(p.Netdevs) == 0 && !p.Up() {
		why = worker.Unavailable
	}
	if why != worker.Unknown {
		r.Without(p.Key(), why)
	}
}

// ambiguous is the confidence, in percent, in a switch that is one of several.
const ambiguous = 60

// absence is why there is no neighbor.
func (l *listener) absence(p *worker.Port, now time.Time) worker.Absence {
	switch {
	case !l.up || !p.Up():
		return worker.Unavailable
	case now.Sub(l.since) < firstFrame:
		return worker.Pending
	}
	return worker.Unknown
}
