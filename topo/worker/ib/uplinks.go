package ib

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/worker"
)

const (
	// walkEvery is the interval between walks of a leaf's uplinks: spines rarely move.
	walkEvery = 5 * time.Minute
	// walkTime bounds the walk of one leaf.
	walkTime = 30 * time.Second
	// pace is the shortest time between two SMPs of a walk: 500 a second, a leaf
	// of 64 ports in a quarter of one. A pass is not slowed: it is two SMPs a
	// port.
	pace = 2 * time.Millisecond
)

// leaf holds the facts about one leaf switch.
type leaf struct {
	uplinks []v1alpha1.Uplink
	// fault explains why the last walk failed; then the uplinks are older.
	fault string
	next  time.Time
}

// walk is the outcome of asking one leaf.
type walk struct {
	leaf    string
	uplinks []v1alpha1.Uplink
	err     error
}

// uplinks reports the uplinks that are known and starts a walk that is due. One
// runs at a time.
func (s *Source) uplinks(
	ctx context.Context, q *worker.Query, r *worker.Report, ports map[worker.PortKey]*worker.Port,
) {
	select {
	case w := <-s.walks:
		s.walking = false
		if l := s.leaves[w.leaf]; l != nil {
			l.end(w)
		}
	default:
	}
	maps.DeleteFunc(s.leaves, func(id string, _ *leaf) bool { return !slices.Contains(q.Leaves, id) })
	for _, id := range slices.Sorted(slices.Values(q.Leaves)) {
		l := s.leaves[id]
		if l == nil {
			l = &leaf{uplinks: slices.DeleteFunc(slices.Clone(q.Uplinks), func(u v1alpha1.Uplink) bool { return u.Leaf != id })}
			s.leaves[id] = l
		}
		if !time.Now().Before(l.next) {
			s.start(ctx, id, l, ports, r.Links)
		}
		if l.fault != "" {
			r.Skip("uplinks of "+id, l.fault)
		}
		r.Uplinks = append(r.Uplinks, l.uplinks...)
	}
}

// end takes an outcome.
func (l *leaf) end(w walk) {
	if w.err != nil {
		l.fault = w.err.Error()
		return
	}
	l.fault, l.uplinks = "", w.uplinks
}

// start begins a walk of a leaf, unless another runs, through a port that the switch itself
// reported to end there.
func (s *Source) start(
	ctx context.Context, id string, l *leaf, ports map[worker.PortKey]*worker.Port, links []worker.Link,
) {
	i := slices.IndexFunc(links, func(l worker.Link) bool { return l.Switch.ID == id })
	if i < 0 {
		l.fault = "no active port of this node leads to it"
		return
	}
	through := ports[links[i].PortKey]
	if through.Virtual {
		l.fault = "a virtual function cannot ask a switch for its uplinks"
	}
	if through.Virtual || s.walking {
		return
	}
	l.next = time.Now().Add(walkEvery)
	s.walking = true
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), walkTime) // A pass ends before.
		defer cancel()
		uplinks, err := s.walk(ctx, through, id)
		s.walks <- walk{id, uplinks, err}
		s.changed.Notify()
	}()
}

// walk asks every port of the leaf that is not down for its neighbor: those
// that are switches are uplinks, by port. An error leaves them incomplete.
func (s *Source) walk(ctx context.Context, p *worker.Port, id string) (uplinks []v1alpha1.Uplink, err error) {
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	err = s.with(ctx, p, func(u *UMAD) error {
		u.pace = ticker.C
		uplinks, err = u.uplinks(ctx, byte(p.Port), id) //nolint:gosec // 1 to 255.
		return err
	})
	return uplinks, err
}

// uplinks asks the ports of the leaf behind the local port out, one after the
// other.
func (u *UMAD) uplinks(ctx context.Context, out byte, id string) (uplinks []v1alpha1.Uplink, err error) {
	leaf, err := u.nodeInfo(ctx, out)
	if err != nil {
		return nil, err
	}
	if leaf.Type != Switch || leaf.System != id {
		return nil, errors.New("the cable now ends elsewhere")
	}
	names := map[string]string{} // Of peers already asked.
	var faults []error
	for port := 1; port <= leaf.Ports; port++ {
		if port == leaf.Port {
			continue // This port itself.
		}
		peer, err := u.peer(ctx, out, byte(port), names)
		switch {
		case ctx.Err() != nil:
			return uplinks, ctx.Err()
		case err != nil:
			faults = append(faults, fmt.Errorf("port %d: %w", port, err))
		case peer.Type == Switch && peer.System != id: // A board of the same director is not an uplink.
			name, _ := peer.inChassis()
			uplinks = append(uplinks, v1alpha1.Uplink{
				Leaf: id, Port: int32(port),
				Peer: peer.System, PeerName: name, PeerPort: int32(peer.Port), //nolint:gosec // As above.
			})
		}
	}
	return uplinks, errors.Join(faults...)
}

// peer returns the node behind one port of the leaf, with its name if it is a
// switch; none if the port is down.
func (u *UMAD) peer(ctx context.Context, out, port byte, names map[string]string) (n Node, err error) {
	if down, err := u.portIsDown(ctx, port, out); err != nil || down {
		return Node{}, err
	}
	if n, err = u.nodeInfo(ctx, out, port); err != nil || n.Type != Switch {
		return n, err
	}
	name, known := names[n.GUID]
	if !known {
		if name, err = u.nodeDescription(ctx, out, port); err != nil {
			return Node{}, err
		}
		names[n.GUID] = name
	}
	n.Name = name
	return n, nil
}
