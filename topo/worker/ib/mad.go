package ib

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/heddle-dev/heddle/topo/worker"
)

// mad is one management datagram as it is on the wire (InfiniBand
// Architecture 1.4, 13.4.2 and 14.2.1.2).
type mad [256]byte

// data is the attribute in an SMP.
type data [64]byte

// Offsets in a directed-route SMP.
const (
	offBase       = 0
	offClass      = 1
	offVersion    = 2
	offMethod     = 3
	offStatus     = 4
	offHopCount   = 7
	offTID        = 8
	offAttribute  = 16
	offModifier   = 20
	offMKey       = 24
	offSourceLID  = 32
	offTargetLID  = 34
	offData       = 64
	offPath       = 128
	permissiveLID = 0xffff
)

const (
	classDirectedRoute = 0x81
	baseVersion        = 1
	classVersion       = 1
	methodGet          = 0x01
	methodGetResp      = 0x81
	statusDirection    = 0x8000 // The D bit: on its way back.
	attrNodeDesc       = 0x0010
	attrNodeInfo       = 0x0011
	attrPortInfo       = 0x0015
)

// NodeType is the type of a node of the fabric.
type NodeType uint8

// The types of nodes.
const (
	CA     NodeType = 1
	Switch NodeType = 2
	Router NodeType = 3
)

// String returns the word for people.
func (t NodeType) String() string {
	switch t {
	case CA:
		return "HCA"
	case Switch:
		return "switch"
	case Router:
		return "router"
	}
	return "unknown node"
}

// Node is the answer of a node of the fabric about itself.
type Node struct {
	Type NodeType
	// GUID is its node GUID as a NodeTopology spells it: 16 lower-case hex
	// digits. System is the GUID that all nodes in one chassis have in common
	// (SystemImageGUID), its own if it has none.
	GUID, System string
	// Name is its NodeDescription; often useless.
	Name string
	// Port is its port by which the SMP arrived, Ports how many it has,
	// without a switch's port 0.
	Port, Ports int
}

var (
	errStatus = errors.New("rejected")
	errValue  = errors.New("impossible value")
)

// request returns a Get of one attribute from the node at the end of path: the
// ports to leave by.
func request(tid uint32, attribute uint16, modifier byte, path []byte) *mad {
	m := &mad{}
	m[offBase], m[offClass], m[offVersion], m[offMethod] = baseVersion, classDirectedRoute, classVersion, methodGet
	m[offHopCount] = byte(len(path)) //nolint:gosec // At most two.
	be := binary.BigEndian
	be.PutUint64(m[offTID:], uint64(tid))
	be.PutUint16(m[offAttribute:], attribute)
	be.PutUint32(m[offModifier:], uint32(modifier))
	be.PutUint16(m[offSourceLID:], permissiveLID)
	be.PutUint16(m[offTargetLID:], permissiveLID)
	copy(m[offPath+1:], path) // The path's first byte is reserved.
	return m
}

// sameTransaction compares the lower half of the transaction's number: kernels
// put their own mark into the upper one.
func (m *mad) sameTransaction(o *mad) bool {
	return [4]byte(m[offTID+4:]) == [4]byte(o[offTID+4:])
}

// isAnswer reports whether answer has the class, attribute and modifier of the
// request.
func (m *mad) isAnswer(answer *mad) bool {
	return answer[offClass] == m[offClass] && answer[offMethod] == methodGetResp &&
		[2]byte(answer[offAttribute:]) == [2]byte(m[offAttribute:]) &&
		[4]byte(answer[offModifier:]) == [4]byte(m[offModifier:])
}

// data returns the attribute in an answer.
func (m *mad) data() (data, error) {
	if status := binary.BigEndian.Uint16(m[offStatus:]) &^ statusDirection; status != 0 {
		return data{}, fmt.Errorf("%w: status %#04x", errStatus, status)
	}
	return data(m[offData:]), nil
}

// nodeInfo reads the attribute of that name.
func (d *data) nodeInfo() (Node, error) {
	guid := binary.BigEndian.Uint64(d[12:])
	n := Node{Type: NodeType(d[2]), Ports: int(d[3]), GUID: fmt.Sprintf("%016x", guid), Port: int(d[36])}
	n.System = n.GUID
	if system := binary.BigEndian.Uint64(d[4:]); system != 0 && system != ^uint64(0) {
		n.System = fmt.Sprintf("%016x", system)
	}
	switch {
	case n.Type < CA || n.Type > Router:
		return Node{}, fmt.Errorf("%w: node type %d", errValue, n.Type)
	case guid == 0 || guid == ^uint64(0):
		return Node{}, fmt.Errorf("%w: node GUID %s", errValue, n.GUID)
	case n.Port > n.Ports:
		return Node{}, fmt.Errorf("%w: port %d of %d", errValue, n.Port, n.Ports)
	}
	return n, nil
}

// nodeDescription reads the attribute of that name.
func (d *data) nodeDescription() string { return worker.Text(d[:], len(d)) }

// isDown reads the logical state in PortInfo: 0 means no change, 1 down, and nothing is behind
// either.
func (d *data) isDown() bool {
	const offState, maskState, down = 32, 0x0f, 1
	return d[offState]&maskState <= down
}
