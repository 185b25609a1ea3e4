package ib

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/heddle-dev/heddle/topo/worker"
)

// Size is the length of a management datagram, in bytes.
const Size = 256

// MAD is one management datagram as it is on the wire (InfiniBand
// Architecture 1.4, 13.4.2 and 14.2.1.2).
type MAD [Size]byte

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
	offSourceLID  = 32
	offTargetLID  = 34
	offData       = 64
	offPath       = 128
	dataLength    = 64
	longestPath   = 63
	permissiveLID = 0xffff
)

// ClassDirectedRoute is the management class of directed-route SMPs.
const ClassDirectedRoute = 0x81

const (
	baseVersion      = 1
	classVersion     = 1
	methodGet        = 0x01
	methodGetResp    = 0x81
	statusDirection  = 0x8000 // The D bit: on its way back.
	attrNodeDesc     = 0x0010
	attrNodeInfo     = 0x0011
	attrPortInfo     = 0x0015
	maskPortState    = 0x0f
	shiftPhysState   = 4
	offPortInfoState = 32
	offPortInfoPhys  = 33
)

// NodeType is what a node of the fabric is.
type NodeType uint8

// The types of nodes.
const (
	CA     NodeType = 1
	Switch NodeType = 2
	Router NodeType = 3
)

// String is the word for people.
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

// NodeInfo is the attribute of that name.
type NodeInfo struct {
	Type NodeType
	// Ports is how many the node has, without a switch's port 0.
	Ports int
	// NodeGUID and PortGUID are the node's and the arrival port's.
	NodeGUID, PortGUID uint64
	// LocalPort is the port by which the SMP arrived.
	LocalPort int
}

// PortState is a port's logical state.
type PortState uint8

// The states of a port that matter here; there is nothing behind one that is
// down.
const (
	PortNoChange PortState = 0
	PortDown     PortState = 1
)

// PortInfo is what is read of the attribute of that name.
type PortInfo struct {
	State PortState
	// PhysState is 5 for a link that is up.
	PhysState uint8
}

var (
	errShort  = errors.New("shorter than a MAD")
	errOther  = errors.New("not the answer to this request")
	errStatus = errors.New("rejected")
	errValue  = errors.New("impossible value")
	errRoute  = errors.New("path of too many hops")
)

// request is a Get of one attribute from the node at the end of path: the
// ports to leave by.
func request(tid uint32, attribute uint16, modifier uint32, path []byte) (MAD, error) {
	var m MAD
	if len(path) > longestPath {
		return m, errRoute
	}
	m[offBase], m[offClass], m[offVersion], m[offMethod] = baseVersion, ClassDirectedRoute, classVersion, methodGet
	m[offHopCount] = byte(len(path)) //nolint:gosec // At most longestPath.
	be := binary.BigEndian
	be.PutUint64(m[offTID:], uint64(tid))
	be.PutUint16(m[offAttribute:], attribute)
	be.PutUint32(m[offModifier:], modifier)
	be.PutUint16(m[offSourceLID:], permissiveLID)
	be.PutUint16(m[offTargetLID:], permissiveLID)
	copy(m[offPath+1:], path) // The path's first byte is reserved.
	return m, nil
}

// Answers reports whether b is an answer to request: of its transaction, class
// and attribute. Kernels put their own mark into the upper half of the
// transaction's number.
func (m *MAD) Answers(b []byte) bool {
	be := binary.BigEndian
	return len(b) >= Size && b[offClass] == m[offClass] && b[offMethod] == methodGetResp &&
		be.Uint32(b[offTID+4:]) == be.Uint32(m[offTID+4:]) &&
		be.Uint16(b[offAttribute:]) == be.Uint16(m[offAttribute:]) &&
		be.Uint32(b[offModifier:]) == be.Uint32(m[offModifier:])
}

// payload is the attribute in an answer.
func (m *MAD) payload(answer []byte) ([]byte, error) {
	if len(answer) < Size {
		return nil, fmt.Errorf("%w: %d bytes", errShort, len(answer))
	}
	if !m.Answers(answer) {
		return nil, errOther
	}
	if status := binary.BigEndian.Uint16(answer[offStatus:]) &^ statusDirection; status != 0 {
		return nil, fmt.Errorf("%w: status %#04x", errStatus, status)
	}
	return answer[offData : offData+dataLength], nil
}

// parseNodeInfo reads 64 bytes of NodeInfo.
func parseNodeInfo(b []byte) (NodeInfo, error) {
	if len(b) < dataLength {
		return NodeInfo{}, errShort
	}
	be := binary.BigEndian
	n := NodeInfo{
		Type: NodeType(b[2]), Ports: int(b[3]),
		NodeGUID: be.Uint64(b[12:]), PortGUID: be.Uint64(b[20:]), LocalPort: int(b[36]),
	}
	switch {
	case n.Type < CA || n.Type > Router:
		return NodeInfo{}, fmt.Errorf("%w: node type %d", errValue, n.Type)
	case n.NodeGUID == 0 || n.NodeGUID == ^uint64(0):
		return NodeInfo{}, fmt.Errorf("%w: node GUID %016x", errValue, n.NodeGUID)
	case n.LocalPort > n.Ports:
		return NodeInfo{}, fmt.Errorf("%w: port %d of %d", errValue, n.LocalPort, n.Ports)
	}
	return n, nil
}

// parseNodeDescription reads 64 bytes of NodeDescription.
func parseNodeDescription(b []byte) string {
	return worker.Text(b[:min(len(b), dataLength)], dataLength)
}

// parsePortInfo reads 64 bytes of PortInfo.
func parsePortInfo(b []byte) (PortInfo, error) {
	if len(b) < dataLength {
		return PortInfo{}, errShort
	}
	return PortInfo{
		State:     PortState(b[offPortInfoState] & maskPortState),
		PhysState: b[offPortInfoPhys] >> shiftPhysState,
	}, nil
}
