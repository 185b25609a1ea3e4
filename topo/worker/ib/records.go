package ib

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/heddle-dev/heddle/topo/worker"
)

// The subnet administrator (InfiniBand Architecture 1.4, 15.2) answers on the
// subnet manager's queue pair 1. It has a record of every link, and one of every
// node; a port without an SMI asks it for its switch.
const (
	classAdministration = 0x03
	administration      = 2 // The version of that class.
	attrLinkRecord      = 0x0020
	offComponents       = 48
	offRecord           = 56

	// Components of a record that a query names.
	linkFromLID  = 1 << 0
	linkFromPort = 1 << 1
	nodeLID      = 1 << 0

	lastUnicastLID = 0xbfff

	// What the kernel puts into a datagram's address, see umadHeader.
	offQueuePair    = 20
	offQueueKey     = 24
	offHasGRH       = 32
	offGID          = 36
	offPKeyIndex    = 56
	serviceQueue    = 1
	serviceQueueKey = 0x80010000
	// administratorID is the lower half of the administrator's GID in every
	// subnet.
	administratorID = 0x0200000000000002

	// recordAge is the time for which an answer of the administrator is used: it is one program for
	// the whole fabric.
	recordAge = 5 * time.Minute
)

// errUnrecorded is wrapped by every error of reading a record.
var errUnrecorded = errors.New("the subnet administrator does not name its switch")

// query returns a Get of a record with these components.
func query(tid uint32, attribute uint16, components uint64, record ...byte) *mad {
	m := &mad{}
	m[offBase], m[offClass], m[offVersion], m[offMethod] = baseVersion, classAdministration, administration, methodGet
	binary.BigEndian.PutUint64(m[offTID:], uint64(tid))
	binary.BigEndian.PutUint16(m[offAttribute:], attribute)
	binary.BigEndian.PutUint64(m[offComponents:], components)
	copy(m[offRecord:], record)
	return m
}

// toAdministrator addresses a datagram to the administrator of a port's subnet. Functions on one
// LID are distinguished by their GIDs, so it adds a global route, as the kernel's own queries do
// (update_sm_ah of ib_sa).
func toAdministrator(b *[umadLength]byte, p *worker.Port) error {
	prefix, err := strconv.ParseUint(p.Subnet, 16, 64)
	if err != nil {
		return fmt.Errorf("subnet prefix: %w", err)
	}
	toServices(b, p.SMLID, p.PKeyIndex)
	b[offHasGRH] = 1
	binary.BigEndian.PutUint64(b[offGID:], prefix)
	binary.BigEndian.PutUint64(b[offGID+8:], administratorID)
	return nil
}

// toServices addresses a datagram to the queue pair 1 of a LID.
func toServices(b *[umadLength]byte, lid, pkeyIndex uint16) {
	binary.BigEndian.PutUint32(b[offQueuePair:], serviceQueue)
	binary.BigEndian.PutUint32(b[offQueueKey:], serviceQueueKey)
	binary.BigEndian.PutUint16(b[offLID:], lid)
	binary.NativeEndian.PutUint16(b[offPKeyIndex:], pkeyIndex)
}

// record asks the administrator for one record.
func (u *UMAD) record(
	ctx context.Context, p *worker.Port, attribute uint16, components uint64, known ...byte,
) (*mad, error) {
	u.tid++
	m := query(u.tid, attribute, components, known...)
	out := encodeUMAD(u.administration, m)
	if err := toAdministrator(&out, p); err != nil {
		return nil, err
	}
	answer, err := u.exchange(ctx, &out, m)
	if err != nil {
		return nil, err
	}
	_, err = answer.data()
	return answer, err
}

// recorded returns the node behind a port by the administrator's records.
func (u *UMAD) recorded(ctx context.Context, p *worker.Port) (n Node, err error) {
	if p.LID == 0 || p.SMLID == 0 {
		return Node{}, fmt.Errorf("%w (no subnet manager gave the port a LID)", errUnrecorded)
	}
	what, lid, port := "LinkRecord", p.LID, byte(p.Port) //nolint:gosec // Port numbers are 1 to 255.
	answer, err := u.record(ctx, p, attrLinkRecord, linkFromLID|linkFromPort,
		append(binary.BigEndian.AppendUint16(nil, lid), port)...)
	if err == nil {
		lid, port, err = answer.link(lid, port)
	}
	if err == nil {
		what = "NodeRecord"
		answer, err = u.record(ctx, p, attrNodeInfo, nodeLID, binary.BigEndian.AppendUint16(nil, lid)...)
	}
	if err == nil {
		n, err = answer.node(lid, port)
	}
	if err != nil {
		return Node{}, fmt.Errorf("%w (%s: %w)", errUnrecorded, what, err)
	}
	return n, nil
}

// link reads the far end of a link out of a LinkRecord.
func (m *mad) link(fromLID uint16, fromPort byte) (lid uint16, port byte, err error) {
	d := m[offRecord:]
	lid, port = binary.BigEndian.Uint16(d[4:]), d[3]
	if from := binary.BigEndian.Uint16(d); from != fromLID || d[2] != fromPort {
		return 0, 0, fmt.Errorf("%w: from LID %d port %d", errValue, from, d[2])
	}
	if lid == 0 || lid > lastUnicastLID || port == 0 {
		return 0, 0, fmt.Errorf("%w: to LID %d port %d", errValue, lid, port)
	}
	return lid, port, nil
}

// node reads a NodeRecord: NodeInfo and NodeDescription behind the LID. The
// record is of no port of a switch, so the caller knows which it is.
func (m *mad) node(lid uint16, port byte) (Node, error) {
	const offInfo, offDescription, offPort = 4, 44, 36
	d := m[offRecord:]
	if of := binary.BigEndian.Uint16(d); of != lid {
		return Node{}, fmt.Errorf("%w: of LID %d", errValue, of)
	}
	var info data
	copy(info[:], d[offInfo:offDescription])
	info[offPort] = port
	n, err := info.nodeInfo()
	if err != nil {
		return Node{}, err
	}
	description := data(d[offDescription:])
	n.Name = description.nodeDescription()
	return n, nil
}

// known is an answer of the administrator.
type known struct {
	node Node
	// lid is the port's LID at that time, until the time of the next query.
	lid   uint16
	until time.Time
}

// remembered returns a recent answer of the administrator about a port.
func (s *Source) remembered(p *worker.Port) (Node, bool) {
	k, ok := s.records[p.Key()]
	return k.node, ok && k.lid == p.LID && time.Now().Before(k.until)
}
