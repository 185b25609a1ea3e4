package lldp

import (
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"unicode"
	"unicode/utf8"

	"github.com/heddle-dev/heddle/topo/worker"
)

// Kind is the sort of an identity.
type Kind uint8

// The sorts of identities.
const (
	// Local is what a switch made up: an inventory number, "vm".
	Local Kind = iota
	// Component is a part's number, Alias and Interface are names given by
	// people or by the switch's system.
	Component
	Alias
	Interface
	// MAC and Network are addresses, which are unique by intent.
	MAC
	Network
)

// ID identifies a switch or a port.
type ID struct {
	Kind Kind
	Text string
}

// Unique reports whether other switches are not meant to have the same one.
func (id ID) Unique() bool { return id.Kind == MAC || id.Kind == Network }

const (
	familyIPv4 = 1
	familyIPv6 = 2
)

var errEmpty = errors.New("empty")

// chassisID reads the value of a chassis TLV (802.1AB-2016, table 8-2).
func chassisID(value []byte) (ID, error) {
	return identity(value, map[byte]Kind{
		1: Component, 2: Alias, 3: Component, 4: MAC, 5: Network, 6: Interface, 7: Local,
	})
}

// portID reads the value of a port TLV (table 8-3).
func portID(value []byte) (ID, error) {
	return identity(value, map[byte]Kind{
		1: Alias, 2: Component, 3: MAC, 4: Network, 5: Interface, 6: Local, 7: Local,
	})
}

// identity reads a subtype and what follows it. A subtype that is reserved, or
// an address of another length, is read as local.
func identity(value []byte, kinds map[byte]Kind) (ID, error) {
	if len(value) < 2 {
		return ID{}, errEmpty
	}
	kind, rest := kinds[value[0]], value[1:]
	switch kind {
	case MAC:
		if len(rest) == addressLength {
			return ID{MAC, net.HardwareAddr(rest).String()}, nil
		}
		kind = Local
	case Network:
		family := rest[0]
		if a, ok := netip.AddrFromSlice(rest[1:]); ok && (family == familyIPv4 || family == familyIPv6) {
			return ID{Network, a.String()}, nil
		}
		kind = Local
	default:
	}
	text := word(rest)
	if text == "" {
		return ID{}, errEmpty
	}
	return ID{kind, text}, nil
}

// word is a text, or hexadecimal digits for bytes that are none.
func word(b []byte) string {
	for len(b) > 0 && b[len(b)-1] == 0 { // Some senders count the end of a C string.
		b = b[:len(b)-1]
	}
	for s := string(b); s != ""; {
		r, size := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return worker.Text(hex.EncodeToString(b), worker.MaxName)
		}
		s = s[size:]
	}
	return worker.Text(b, worker.MaxName)
}

// SwitchID is the neighbor's identity as a switch. An identity that a switch
// made up may be another's too, and is distinguished by the system's name;
// contested means that also a unique one was received under two names.
func (n *Neighbor) SwitchID(contested bool) string {
	if (n.Chassis.Unique() && !contested) || n.SystemName == "" || n.SystemName == n.Chassis.Text {
		return n.Chassis.Text
	}
	return worker.Text(n.Chassis.Text+"@"+n.SystemName, worker.MaxName)
}

// SwitchPort is the port as people know it: its name, which switches that
// identify ports by MAC address put into the description.
func (n *Neighbor) SwitchPort() string {
	if n.PortDescription != "" && n.Port.Kind == MAC {
		return n.PortDescription
	}
	return n.Port.Text
}
