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
	"github.com/heddle-dev/heddle/topo/worker"
)

// MaxUplinks bounds the uplinks of a NodeTopology.
const MaxUplinks = 2048

// Uplinks discovers the uplinks of one leaf, through the port with the cable to it:
// every port of the switch that is not down is asked for its neighbor, and
// those that are switches are uplinks, by port. An error leaves them
// incomplete.
func (s *Source) Uplinks(ctx context.Context, p worker.Port, leaf string) (uplinks []v1alpha1.Uplink, err error) {
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
		d := discovery{agent: a, out: byte(p.Port), leaf: leaf, names: map[uint64]string{}} //nolint:gosec // 1 to 255.
		uplinks, err = d.run(ctx)
		return err
	})
	return uplinks, err
}

// discovery asks a leaf's ports, one after the other.
type discovery struct {
	agent *agent
	// out is the local port.
	out  byte
	leaf string
	// names are those of peers already asked.
	names map[uint64]string
}

func (d *discovery) run(ctx context.Context) ([]v1alpha1.Uplink, error) {
	info, err := d.agent.nodeInfo(ctx, d.out)
	if err != nil {
		return nil, err
	}
	if info.Type != Switch || GUID(info.NodeGUID) != d.leaf {
		return nil, errors.New("the cable now ends elsewhere")
	}
	var uplinks []v1alpha1.Uplink
	var faults []error
	for port := 1; port <= info.Ports && len(uplinks) < MaxUplinks; port++ {
		if port == info.LocalPort {
			continue // This port itself.
		}
		u, ok, err := d.port(ctx, port)
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
func (d *discovery) port(ctx context.Context, port int) (u v1alpha1.Uplink, ok bool, err error) {
	state, err := d.agent.portInfo(ctx, port, d.out)
	if err != nil || state.State == PortDown || state.State == PortNoChange {
		return u, false, err
	}
	peer, err := d.agent.nodeInfo(ctx, d.out, byte(port)) //nolint:gosec // Ports are counted in a byte.
	if err != nil || peer.Type != Switch {
		return u, false, err
	}
	name, known := d.names[peer.NodeGUID]
	if !known {
		if name, err = d.agent.nodeDescription(ctx, d.out, byte(port)); err != nil { //nolint:gosec // As above.
			return u, false, err
		}
		d.names[peer.NodeGUID] = name
	}
	return v1alpha1.Uplink{
		Leaf: d.leaf, Port: int32(port), //nolint:gosec // As above.
		Peer: GUID(peer.NodeGUID), PeerName: name, PeerPort: int32(peer.LocalPort), //nolint:gosec // As above.
	}, true, nil
}
