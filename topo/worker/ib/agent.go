package ib

import (
	"context"
	"errors"
	"fmt"
)

// Transport carries management datagrams through one port of one HCA. It
// repeats what is lost.
type Transport interface {
	// Exchange sends a request and returns its answer: [MAD.Answers] holds.
	Exchange(ctx context.Context, request *MAD) (MAD, error)
	Close() error
}

// ErrNoAnswer is what a Transport returns if no answer came in time.
var ErrNoAnswer = errors.New("no answer")

// Neighbor is the node at the other end of a cable.
type Neighbor struct {
	Type NodeType
	GUID uint64
	// Name is its NodeDescription; often useless.
	Name string
	// Port is its port that the cable is in, Ports how many it has.
	Port, Ports int
}

// agent asks through one transport. It is for one goroutine.
type agent struct {
	transport Transport
	tid       uint32
	// pace waits until the next SMP may be sent; nil: at once.
	pace func(ctx context.Context) error
}

func (a *agent) get(ctx context.Context, attribute uint16, modifier uint32, path []byte) ([]byte, error) {
	if a.pace != nil {
		if err := a.pace(ctx); err != nil {
			return nil, err
		}
	}
	a.tid++
	m, err := request(a.tid, attribute, modifier, path)
	if err != nil {
		return nil, err
	}
	answer, err := a.transport.Exchange(ctx, &m)
	if err != nil {
		return nil, err
	}
	return m.payload(answer[:])
}

func (a *agent) nodeInfo(ctx context.Context, path ...byte) (NodeInfo, error) {
	b, err := a.get(ctx, attrNodeInfo, 0, path)
	if err != nil {
		return NodeInfo{}, fmt.Errorf("NodeInfo: %w", err)
	}
	n, err := parseNodeInfo(b)
	if err != nil {
		return NodeInfo{}, fmt.Errorf("NodeInfo: %w", err)
	}
	return n, nil
}

func (a *agent) nodeDescription(ctx context.Context, path ...byte) (string, error) {
	b, err := a.get(ctx, attrNodeDesc, 0, path)
	if err != nil {
		return "", fmt.Errorf("NodeDescription: %w", err)
	}
	return parseNodeDescription(b), nil
}

func (a *agent) portInfo(ctx context.Context, port int, path ...byte) (PortInfo, error) {
	b, err := a.get(ctx, attrPortInfo, uint32(port), path) //nolint:gosec // A port number fits a byte.
	if err != nil {
		return PortInfo{}, fmt.Errorf("PortInfo: %w", err)
	}
	return parsePortInfo(b)
}

// neighbor is who is behind the local port: two SMPs at hop 1. A node that
// rejects the request for its description is still a neighbor.
func (a *agent) neighbor(ctx context.Context, port byte) (Neighbor, error) {
	info, err := a.nodeInfo(ctx, port)
	if err != nil {
		return Neighbor{}, err
	}
	n := Neighbor{Type: info.Type, GUID: info.NodeGUID, Port: info.LocalPort, Ports: info.Ports}
	if n.Name, err = a.nodeDescription(ctx, port); err != nil && !errors.Is(err, errStatus) {
		return Neighbor{}, err
	}
	return n, nil
}
