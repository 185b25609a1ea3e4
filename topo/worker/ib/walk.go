package ib

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/worker/cable"
)

// MaxUplinks bounds the uplinks of a NodeTopology.
const MaxUplinks = 2048

// Walk finds the uplinks of one leaf, through the port whose cable ends there:
// every port of the switch that is not down is asked for its neighbor, and
// those that are switches are uplinks, by port. An error leaves them
// incomplete.
func (s *Source) Walk(ctx context.Context, p cable.Port, leaf string) (uplinks []v1alpha1.Uplink, err error) {
	if p.LinkLayer != machine.InfiniBand || !p.Up() {
		return nil, errors.New("the port that leads there is down")
	}
	ticker := time.NewTicker(s.pace)
	defer ticker.Stop()
	err = s.with(ctx, &p, func(a *agent) error {
		a.pace = func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-ticker.C:
				return nil
			}
		}
		w := walk{agent: a, out: byte(p.Port), leaf: leaf, names: map[uint64]string{}} //nolint:gosec // 1 to 255.
		uplinks, err = w.run(ctx)
		return err
	})
	return uplinks, err
}

// walk is one walk over a leaf's ports.
type walk struct {
	agent *agent
	// out is the local port.
	out  byte
	leaf string
	// names are those of peers already asked.
	names map[uint64]string
}

func (w *walk) run(ctx context.Context) ([]v1alpha1.Uplink, error) {
	info, err := w.agent.nodeInfo(ctx, w.out)
	if err != nil {
		return nil, err
	}
	if info.Type != Switch || GUID(info.NodeGUID) != w.leaf {
		return nil, errors.New("the cable now ends elsewhere")
	}
	var uplinks []v1alpha1.Uplink
	var faults []error
	for port := 1; port <= info.Ports && len(uplinks) < MaxUplinks; port++ {
		if port == info.LocalPort {
			continue // Ourselves.
		}
		u, ok, err := w.port(ctx, port)
		switch {
		case ctx.Err() != nil:
			return uplinks, ctx.Err()
		case err != nil:
			faults = append(faults, fmt.Errorf("port %d: %w", port, err))
		case ok:
			uplinks = append(uplinks, u)
		}
	}
	slices.SortFunc(uplinks, func(a, b v1alpha1.Uplink) int { return cmp.Compare(a.Port, b.Port) })
	return uplinks, errors.Join(faults...)
}

// port asks one port of the leaf; ok is false if it is down or leads to no
// switch.
func (w *walk) port(ctx context.Context, port int) (u v1alpha1.Uplink, ok bool, err error) {
	state, err := w.agent.portInfo(ctx, port, w.out)
	if err != nil || state.State == PortDown || state.State == PortNoChange {
		return u, false, err
	}
	peer, err := w.agent.nodeInfo(ctx, w.out, byte(port)) //nolint:gosec // Ports are counted in a byte.
	if err != nil || peer.Type != Switch {
		return u, false, err
	}
	name, known := w.names[peer.NodeGUID]
	if !known {
		if name, err = w.agent.nodeDescription(ctx, w.out, byte(port)); err != nil { //nolint:gosec // As above.
			return u, false, err
		}
		w.names[peer.NodeGUID] = name
	}
	return v1alpha1.Uplink{
		Leaf: w.leaf, Port: int32(port), //nolint:gosec // As above.
		Peer: GUID(peer.NodeGUID), PeerName: name, PeerPort: int32(peer.LocalPort), //nolint:gosec // As above.
	}, true, nil
}
