package lldp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/heddle-dev/heddle/topo/worker"
)

// EtherType is LLDP's.
const EtherType = 0x88cc

const (
	typeVLAN         = 0x8100
	typeServiceVLAN  = 0x88a8
	maxTags          = 2
	addressLength    = 6
	headerLength     = 14
	tagLength        = 4
	maxFrame         = 9216
	maxTLVs          = 256
	shiftTLVType     = 9
	maskTLVLength    = 0x1ff
	capabilityRouter = 1 << 4
	capabilityBridge = 1 << 2
)

// The types of TLVs that are read.
const (
	tlvEnd          = 0
	tlvChassis      = 1
	tlvPort         = 2
	tlvTTL          = 3
	tlvPortDesc     = 4
	tlvSystemName   = 5
	tlvCapabilities = 7
)

// Scope is the distance that a frame's address lets it travel. A smaller one is nearer.
type Scope uint8

// The scopes, by the last byte of the group address 01:80:c2:00:00:XX.
const (
	// NearestBridge frames (0e) come from the other end of the cable: nothing
	// forwards them.
	NearestBridge Scope = iota
	// NearestNonTPMR frames (03) may have passed a two-port relay.
	NearestNonTPMR
	// NearestCustomerBridge frames (00) may have passed a provider's bridges.
	NearestCustomerBridge
	// Elsewhere is any other address.
	Elsewhere
)

// Neighbor is the content of one frame.
type Neighbor struct {
	// Chassis and Port are the identities, as text.
	Chassis, Port ID
	// PortDescription and SystemName are for people; empty if not in the frame.
	PortDescription, SystemName string
	// TTL is the lifetime of this information; 0 means that the neighbor shuts down.
	TTL time.Duration
	// Bridge is set if the neighbor forwards frames.
	Bridge bool
	Scope  Scope
}

var (
	errNotLLDP = errors.New("not an LLDP frame")
	errShort   = errors.New("cut short")
	errOrder   = errors.New("chassis, port and time to live must come first, in this order")
	errTwice   = errors.New("appears twice")
)

// parse reads one Ethernet frame.
func parse(frame []byte) (Neighbor, error) {
	var n Neighbor
	body, err := payload(frame)
	if err != nil {
		return n, err
	}
	n.Scope = scope(frame)
	var seen [1 << 7]bool
	for i := range maxTLVs {
		if len(body) < 2 {
			// Some senders leave the end out.
			if len(body) == 0 && i > tlvTTL-1 {
				return n, nil
			}
			return n, errShort
		}
		head := binary.BigEndian.Uint16(body)
		kind, length := head>>shiftTLVType, int(head&maskTLVLength)
		if body = body[2:]; length > len(body) {
			return n, fmt.Errorf("TLV %d: %w", kind, errShort)
		}
		if i < tlvTTL && int(kind) != i+1 {
			return n, errOrder
		}
		if kind == tlvEnd {
			return n, nil
		}
		if seen[kind] && kind <= tlvCapabilities {
			return n, fmt.Errorf("TLV %d: %w", kind, errTwice)
		}
		seen[kind] = true
		if err := n.take(kind, body[:length]); err != nil {
			return n, fmt.Errorf("TLV %d: %w", kind, err)
		}
		body = body[length:]
	}
	return n, nil
}

// payload returns the bytes behind the Ethernet header and VLAN tags.
func payload(frame []byte) ([]byte, error) {
	if len(frame) < headerLength || len(frame) > maxFrame {
		return nil, errNotLLDP
	}
	body := frame[2*addressLength:]
	for range maxTags {
		if t := binary.BigEndian.Uint16(body); t != typeVLAN && t != typeServiceVLAN {
			break
		}
		if len(body) < tagLength+2 {
			return nil, errNotLLDP
		}
		body = body[tagLength:]
	}
	if binary.BigEndian.Uint16(body) != EtherType {
		return nil, errNotLLDP
	}
	return body[2:], nil
}

func scope(frame []byte) Scope {
	for i, g := range groups() {
		if [addressLength]byte(frame) == g {
			return Scope(i)
		}
	}
	return Elsewhere
}

// groups returns the addresses that LLDP is sent to, by scope.
func groups() [3][addressLength]byte {
	return [3][addressLength]byte{
		{0x01, 0x80, 0xc2, 0, 0, 0x0e}, {0x01, 0x80, 0xc2, 0, 0, 0x03}, {0x01, 0x80, 0xc2, 0, 0, 0x00},
	}
}

// take reads one TLV's value.
func (n *Neighbor) take(kind uint16, value []byte) (err error) {
	switch kind {
	case tlvChassis:
		n.Chassis, err = identity(value, chassisMAC, chassisNetwork)
	case tlvPort:
		n.Port, err = identity(value, portMAC, portNetwork)
	case tlvTTL:
		if len(value) < 2 {
			return errShort
		}
		n.TTL = time.Duration(binary.BigEndian.Uint16(value)) * time.Second
	case tlvPortDesc:
		n.PortDescription = worker.Text(value, worker.MaxName)
	case tlvSystemName:
		n.SystemName = worker.Text(value, worker.MaxSwitchName)
	case tlvCapabilities:
		// First the supported capabilities, then the enabled ones.
		if len(value) < 4 {
			return errShort
		}
		n.Bridge = binary.BigEndian.Uint16(value[2:])&(capabilityBridge|capabilityRouter) != 0
	}
	return err
}
