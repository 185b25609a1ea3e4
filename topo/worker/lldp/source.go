// Package lldp receives what Ethernet switches announce of themselves: which
// switch and which of its ports a cable ends in (IEEE 802.1AB).
//
// It owns one packet socket for each network device and the neighbors seen on
// it, each for the time to live in its frame. It listens on the members of a bond
// and never on the bond, which shows frames of one member at random; it never
// sends. A frame is any bytes from outside: it is bounded, checked and cleaned
// before anything of it is kept.
package lldp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/topo/worker"
)

// firstFrame is the time that a switch may take to send a frame after a socket opened or a link
// came up: the standard's interval is 30 s.
const firstFrame = 35 * time.Second

// Source listens on the network devices that it is asked about. It is for one
// goroutine. Close it.
type Source struct {
	changed notify.Signal
	log     *slog.Logger
	devices map[string]*device
	// last are the neighbors received last on each device, also after its link went down.
	last map[string][]Neighbor
}

// device is a network device with a socket.
type device struct {
	name  string
	index int
	file  *os.File
	// done is closed when the goroutine that receives has ended.
	done chan struct{}

	// mu guards what follows.
	mu    sync.Mutex
	table table
	// since is the time since which frames can arrive.
	since time.Time
	// last is the time of the last frame from a neighbor, zero before the first.
	last time.Time
	up   bool
	// flapped is set once the link came up: the cable may be another since.
	flapped bool
	// failed is set when the goroutine ended without being told to.
	failed bool
}

// New returns a Source that listens nowhere yet. changed is set after a neighbor
// came, changed or went away; the log gets bad frames at debug level.
func New(changed notify.Signal, log *slog.Logger) *Source {
	return &Source{changed: changed, log: log, devices: map[string]*device{}, last: map[string][]Neighbor{}}
}

// Kind implements [worker.Source].
func (s *Source) Kind() v1alpha1.Source { return v1alpha1.SourceLLDP }

// Close stops listening everywhere.
func (s *Source) Close() { s.follow(nil) }

// Discover reports the neighbors received last, and from now on listens on the devices of
// these ports and no others.
func (s *Source) Discover(_ context.Context, q worker.Query) worker.Report {
	var r worker.Report
	wanted := map[string]bool{}
	var ports []*worker.Port
	if r.Listening = q.Topology.Uses(config.SourceLLDP); r.Listening {
		for i := range q.Ports {
			if p := &q.Ports[i]; p.LinkLayer == machine.Ethernet {
				ports = append(ports, p)
				for _, netdev := range p.Netdevs {
					wanted[netdev] = true
				}
			}
		}
	}
	failed := s.follow(wanted)
	for _, netdev := range slices.Sorted(maps.Keys(failed)) {
		r.Skip(netdev, "listen: "+failed[netdev].Error())
	}
	s.report(&r, ports, failed, hostIdentities())
	return r
}

// follow listens on the devices that are wanted, and returns why it cannot.
func (s *Source) follow(wanted map[string]bool) (failed map[string]error) {
	for name, d := range s.devices {
		if wanted[name] && d.refresh() {
			continue
		}
		delete(s.devices, name)
		if err := d.file.Close(); err != nil {
			s.log.Debug("closing a packet socket", "netdev", name, "err", err)
		}
		<-d.done
	}
	failed = map[string]error{}
	for name := range wanted {
		if s.devices[name] != nil {
			continue
		}
		index, up, err := link(name)
		if err != nil {
			failed[name] = err
			continue
		}
		file, err := listen(index)
		if err != nil {
			failed[name] = err
			continue
		}
		d := &device{name: name, index: index, file: file, since: time.Now(), up: up, done: make(chan struct{})}
		s.devices[name] = d
		go s.receive(d)
	}
	return failed
}

// refresh sees whether the link is up, and reports whether the socket is still
// of use: another device may have the name now.
func (d *device) refresh() bool {
	index, up, err := link(d.name)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.link(up)
	return err == nil && index == d.index && !d.failed
}

// link notes whether the link is up. What was received before it went down is no
// longer known: the cable may be in another port when it comes up.
func (d *device) link(up bool) {
	if up && !d.up {
		d.since, d.flapped = time.Now(), true
	}
	if !up {
		d.table, d.last = table{}, time.Time{}
	}
	d.up = up
}

// receive takes frames until the socket is closed. A device that went down may
// come up again.
func (s *Source) receive(d *device) {
	defer close(d.done)
	buf := make([]byte, maxFrame)
	for {
		n, err := d.file.Read(buf)
		if err != nil && !errors.Is(err, syscall.ENETDOWN) {
			d.mu.Lock()
			d.failed = true
			d.mu.Unlock()
			return
		}
		if s.received(d, buf[:n], err != nil) {
			s.changed.Notify()
		}
	}
}

// received takes a frame, or that the device went down, and reports whether that
// changed anything.
func (s *Source) received(d *device, frame []byte, down bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if down {
		d.link(false)
		return true
	}
	neighbor, err := parse(frame)
	if err != nil {
		s.log.Debug("bad LLDP frame", "netdev", d.name, "bytes", len(frame), "err", err)
		return false
	}
	d.up = true
	now := time.Now()
	if neighbor.TTL > 0 {
		d.last = now
	}
	return d.table.update(neighbor, now)
}

// neighbors returns the known neighbors, or the reason for their absence.
func (d *device) neighbors(p *worker.Port, now time.Time) ([]Neighbor, worker.Absence) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch known := d.table.neighbors(now); {
	case len(known) > 0:
		return known, worker.Unknown
	case !d.up || !p.Up():
		return nil, worker.Unavailable
	case d.last.IsZero() && now.Sub(d.since) < firstFrame:
		return nil, worker.Pending
	case d.flapped && d.last.IsZero():
		return nil, worker.Unknown // The cable may end elsewhere since it came up.
	}
	return nil, worker.Unavailable // The same cable as before: only its switch fell silent.
}

// reportSilence notes when the switch behind a port that is up was last received.
func (d *device) reportSilence(r *worker.Report, p *worker.Port, why worker.Absence) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.up && why == worker.Unavailable && p.Up() {
		r.Silent(d.last, "no LLDP frame for longer than the last one was to hold; is LLDP running on the switch?")
	}
}

// report adds the known links of the ports to the report.
func (s *Source) report(r *worker.Report, ports []*worker.Port, failed map[string]error, host map[string]bool) {
	now := time.Now()
	heard, contested := s.heard(now)
	for _, p := range ports {
		why := worker.Unknown
		if len(p.Netdevs) == 0 && !p.Up() {
			why = worker.Unavailable
		}
		var known []Neighbor
		for _, netdev := range p.Netdevs {
			absence := worker.Unavailable
			if d := s.devices[netdev]; d != nil {
				known, absence = d.neighbors(p, now)
				d.reportSilence(r, p, absence)
				known = slices.DeleteFunc(known, func(n Neighbor) bool { return n.isHost(host) })
				slices.SortStableFunc(known, func(a, b Neighbor) int { // What is on all ports is no leaf of one.
					return cmp.Or(likelier(&a, &b), cmp.Compare(heard[a.Chassis], heard[b.Chassis]))
				})
			} else if failed[netdev] == nil {
				absence = worker.Unknown
			}
			if len(known) > 0 {
				enter(r, p, netdev, known, contested)
				break
			}
			why = max(why, absence)
		}
		if len(known) == 0 && why != worker.Unknown {
			r.Without(p.Key(), why)
		}
	}
}

// heard counts the devices on which each switch was heard last, and finds the identities that this node
// received under two names: two switches that were given one address.
func (s *Source) heard(now time.Time) (count map[ID]int, contested map[ID]bool) {
	for name, d := range s.devices {
		if known, _ := d.neighbors(&worker.Port{}, now); len(known) > 0 {
			s.last[name] = known
		}
	}
	maps.DeleteFunc(s.last, func(name string, _ []Neighbor) bool { return s.devices[name] == nil })
	count, contested = map[ID]int{}, map[ID]bool{}
	names := map[ID]string{}
	for _, known := range s.last {
		for _, n := range known {
			if first, ok := names[n.Chassis]; ok && first != n.SystemName {
				contested[n.Chassis] = true
			}
			names[n.Chassis] = n.SystemName
			count[n.Chassis]++
		}
	}
	return count, contested
}

// ambiguous is the confidence, in percent, in a switch that is one of several.
const ambiguous = 60

// enter reports the likeliest of the neighbors on a port's network device.
func enter(r *worker.Report, p *worker.Port, netdev string, known []Neighbor, contested map[ID]bool) {
	best := &known[0]
	end := worker.Link{
		PortKey:    p.Key(),
		Switch:     v1alpha1.Switch{ID: best.SwitchID(contested[best.Chassis]), Name: best.SystemName},
		SwitchPort: best.SwitchPort(), Confidence: 100,
	}
	if len(known) > 1 && likelier(best, &known[1]) == 0 {
		end.Confidence = ambiguous
		r.Skip(netdev, fmt.Sprintf("frames of two switches, %s and %s; one cable has one other end",
			best.Chassis.Text, known[1].Chassis.Text))
	}
	r.Links = append(r.Links, end)
}
