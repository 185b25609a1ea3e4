// Package ib finds the InfiniBand switch and port behind every HCA port by
// directed-route management datagrams (SMPs): NodeInfo and NodeDescription of
// the node one hop away, which the switch's firmware answers whether or not a
// subnet manager ran. On request it also asks the ports of a leaf switch for
// its uplinks, at a bounded rate. For a virtual function, which sends no SMPs,
// it asks the subnet administrator for its records of the link and the switch.
// As often as the node's own error counters are read, it reads the counters of
// the switch's port.
//
// It owns the codec of those datagrams and the kernel's interface to them,
// /dev/infiniband/umadN. It never sends anything but Get, never goes more than
// two hops, never acts as a subnet manager, and trusts no answer: every byte
// is checked before it is used.
package ib

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/discovery/bounded"
	"github.com/heddle-dev/heddle/internal/notify"
	"github.com/heddle-dev/heddle/topo/worker"
)

// Source asks the switches behind InfiniBand ports. It is for one goroutine.
type Source struct {
	open    func(device string) (*UMAD, error)
	keys    keys
	changed notify.Signal
	// calls are of every port ever asked. One with a stuck driver is not
	// repeated.
	calls bounded.Group[worker.PortKey, answer]

	// leaves are the switches to walk, walks has the outcome of
	// the walk that runs.
	leaves map[string]*leaf
	// records are the subnet administrator's last answers.
	records map[worker.PortKey]known
	walks   chan walk
	walking bool

	// counted is the reading of counters for which switches were asked last, uncounted why one of them did not answer.
	counted   time.Time
	uncounted string
}

// New returns a Source. open opens one of an HCA's devices by its name, such as
// umad0; mkeys is a folder with the M_Keys of fabrics, "" for none; changed is
// set after uplinks were found.
func New(open func(device string) (*UMAD, error), mkeys string, changed notify.Signal) *Source {
	return &Source{
		open: open, keys: keys(mkeys), changed: changed, leaves: map[string]*leaf{}, walks: make(chan walk, 1),
		records: map[worker.PortKey]known{},
	}
}

// Kind implements [worker.Source].
func (s *Source) Kind() v1alpha1.Source { return v1alpha1.SourceIB }

// Discover asks for every InfiniBand port at once. Uplinks are asked for beside
// the passes, and reported once they are known.
func (s *Source) Discover(ctx context.Context, q worker.Query) worker.Report {
	var r worker.Report
	if !q.Topology.Uses(config.SourceIB) {
		return r
	}
	ports := map[worker.PortKey]*worker.Port{}
	count := !q.Counted.Equal(s.counted)
	if s.counted = q.Counted; count {
		s.uncounted = ""
	}
	var asked []worker.PortKey
	for i := range q.Ports {
		p := &q.Ports[i]
		switch {
		case p.LinkLayer != machine.InfiniBand:
		case !p.Up():
			r.Without(p.Key(), worker.Unavailable)
			delete(s.records, p.Key()) // What comes up again may end elsewhere.
		default:
			ports[p.Key()] = p
			if n, ok := s.remembered(p); ok {
				report(&r, p, &answer{Node: n}, nil)
			} else {
				asked = append(asked, p.Key())
			}
		}
	}
	answers := s.calls.Ask(ctx, asked, func(k worker.PortKey) (answer, error) {
		return s.neighbor(ctx, ports[k], count)
	})
	for i, a := range answers {
		p := ports[asked[i]]
		report(&r, p, &a.Value, a.Err)
		if p.Virtual && a.Err == nil {
			s.records[p.Key()] = known{a.Value.Node, p.LID, time.Now().Add(recordAge)}
		}
		if a.Value.reason != nil {
			s.uncounted = cmp.Or(s.uncounted, portName(p)+": "+a.Value.reason.Error())
		}
	}
	if s.uncounted != "" {
		r.Skip("counters of the switches", s.uncounted)
	}
	s.uplinks(ctx, &q, &r, ports)
	return r
}

// report enters the outcome of one port.
func report(r *worker.Report, p *worker.Port, n *answer, err error) {
	name := portName(p)
	switch {
	case err != nil:
		r.Skip(name, explain(p, err))
		r.Without(p.Key(), worker.Unavailable)
	case n.Type != Switch:
		r.Skip(name, "no switch at the other end of the cable: "+n.Type.String())
	default:
		name, port := n.inChassis()
		r.Links = append(r.Links, worker.Link{
			PortKey: p.Key(), Switch: v1alpha1.Switch{ID: n.System, Name: name}, SwitchPort: port, Confidence: 100,
			Counters: n.counters,
		})
	}
}

func portName(p *worker.Port) string { return p.HCA + " port " + strconv.Itoa(int(p.Port)) }

// inChassis returns the switch's name and the port's. A board of a director is named after both, as
// in MF0;director:CS8500/L07/U1: the part after the slash is the board's.
func (n *Node) inChassis() (name, port string) {
	port = strconv.Itoa(n.Port)
	if n.System == n.GUID {
		return n.Name, port
	}
	name, board, found := strings.Cut(n.Name, "/")
	if found {
		port = board + "/" + port
	}
	return name, port
}

// neighbor asks for the node behind a port: two SMPs at hop 1, or where none can
// be sent two records of the subnet administrator. A node that rejects the
// request for its description is still a neighbor, and so is one without counters.
func (s *Source) neighbor(ctx context.Context, p *worker.Port, count bool) (a answer, err error) {
	err = s.with(ctx, p, func(u *UMAD) error {
		port := byte(p.Port) //nolint:gosec // Port numbers are 1 to 255.
		a.Node, err = u.nodeInfo(ctx, port)
		if cannotAsk(p, err) {
			a.Node, err = u.recorded(ctx, p)
			return err
		}
		if err != nil {
			return u.key.blame(err)
		}
		if a.Name, err = u.nodeDescription(ctx, port); err != nil && !errors.Is(err, errStatus) {
			return err
		}
		if count && a.Type == Switch {
			a.counters, a.reason = u.counters(ctx, p, byte(a.Port)) //nolint:gosec // As above.
		}
		return nil
	})
	return a, err
}

// cannotAsk reports whether an error comes from a port without an SMI. Some
// virtual functions have one that drops everything.
func cannotAsk(p *worker.Port, err error) bool {
	return p.Virtual && (errors.Is(err, ErrNotInfiniBand) || errors.Is(err, errNoAnswer))
}

var errNoDevice = errors.New("no umad device; is the kernel module ib_umad loaded?")

// with calls f with the port's device and closes it afterwards: an open device would block
// unloading the driver.
func (s *Source) with(ctx context.Context, p *worker.Port, f func(*UMAD) error) error {
	key, err := s.keys.of(p.Subnet)
	if err != nil {
		return err
	}
	last := errNoDevice
	for _, device := range p.UMAD {
		u, err := s.open(device)
		if err != nil {
			last = openFault(device, err)
			continue
		}
		u.key = key
		// An HCA of several ports has as many devices, and only the port itself
		// knows its number.
		own := Node{Port: int(p.Port)}
		if len(p.UMAD) > 1 {
			own, err = u.nodeInfo(ctx)
		}
		if err == nil && own.Port == int(p.Port) {
			return errors.Join(f(u), u.Close())
		}
		if err = errors.Join(err, u.Close()); err != nil {
			last = fmt.Errorf("%s: %w", device, err)
		}
	}
	return last
}

// openFault names the device once.
func openFault(device string, err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("open %s: %w", device, at.Err)
	}
	return fmt.Errorf("open %s: %w", device, err)
}

// elsewhere names the other sources of cables.
const elsewhere = "name its groups in the static file, the cluster manager or Node labels (topology.pathLabels)"

// explain says what to do about a port that gets no answer.
func explain(p *worker.Port, err error) string {
	switch {
	case p.Virtual && errors.Is(err, errUnrecorded):
		return "a virtual function has no SMI, and " + err.Error() + ": " + elsewhere
	case cannotAsk(p, err):
		return "a virtual function has no SMI and cannot ask its switch: " + elsewhere
	case errors.Is(err, ErrNotInfiniBand):
		return "the device carries no SMPs, as an HCA of several planes without its SMI device " +
			"(rdma dev add smi0 type SMI parent " + p.HCA + "): " + elsewhere
	}
	return err.Error()
}
