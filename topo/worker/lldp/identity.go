package lldp

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/heddle-dev/heddle/topo/worker"
)

// Kind is the sort of an identity.
type Kind uint8

// The sorts of identities.
const (
	// Local is a name that other switches may have too: one that the switch or
	// people made up, a part's number.
	Local Kind = iota
	// MAC and Network are addresses, which are unique by intent.
	MAC
	Network
)

// ID identifies a switch or a port.
type ID struct {
	Kind Kind
	Text string
}

// The subtypes of identities that are addresses (802.1AB-2016, tables 8-2 and
// 8-3).
const (
	chassisMAC, chassisNetwork = 4, 5
	portMAC, portNetwork       = 3, 4
)

const (
	familyIPv4 = 1
	familyIPv6 = 2
)

var errEmpty = errors.New("empty")

// identity reads a subtype and what follows it. An address of another length is
// read as a name.
func identity(value []byte, mac, network byte) (ID, error) {
	if len(value) < 2 {
		return ID{}, errEmpty
	}
	subtype, rest := value[0], value[1:]
	if subtype == mac && len(rest) == addressLength {
		return ID{MAC, net.HardwareAddr(rest).String()}, nil
	}
	if family := rest[0]; subtype == network && (family == familyIPv4 || family == familyIPv6) {
		if a, ok := netip.AddrFromSlice(rest[1:]); ok {
			return ID{Network, a.String()}, nil
		}
	}
	text := word(rest)
	if text == "" {
		return ID{}, errEmpty
	}
	return ID{Local, text}, nil
}

// word returns a text, or hexadecimal digits for bytes that are not a text.
func word(b []byte) string {
	b = bytes.TrimRight(b, "\x00") // Some senders count the end of a C string.
	if bytes.ContainsFunc(b, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }) {
		return worker.Text(hex.EncodeToString(b), worker.MaxName)
	}
	return worker.Text(b, worker.MaxName)
}

// SwitchID returns the neighbor's identity as a switch. An identity that a switch
// made up may be another's too, and is distinguished by the system's name;
// contested means that also a unique one was received under two names. A switch that names
// the port's address as its own is known by its name.
func (n *Neighbor) SwitchID(contested bool) string {
	if n.Chassis.Kind == MAC && n.Chassis == n.Port && n.SystemName != "" {
		return n.SystemName
	}
	if (n.Chassis.Kind != Local && !contested) || n.SystemName == "" || n.SystemName == n.Chassis.Text {
		return n.Chassis.Text
	}
	return worker.Text(n.Chassis.Text+"@"+n.SystemName, worker.MaxName)
}

// isHost reports whether a frame is of the host itself, such as of its own software bridge, by the
// addresses and the name of the host.
func (n *Neighbor) isHost(host map[string]bool) bool {
	name, _, _ := strings.Cut(n.SystemName, ".")
	return n.Chassis.Kind == MAC && host[n.Chassis.Text] || n.Port.Kind == MAC && host[n.Port.Text] ||
		host[strings.ToLower(name)]
}

// hostIdentities returns the addresses of the host's network devices and the first part of its name.
func hostIdentities() map[string]bool {
	out := map[string]bool{}
	if name, err := os.Hostname(); err == nil {
		name, _, _ = strings.Cut(strings.ToLower(name), ".")
		out[name] = name != ""
	}
	all, _ := net.Interfaces() // Without them the name decides.
	for _, i := range all {
		if len(i.HardwareAddr) == addressLength {
			out[i.HardwareAddr.String()] = true
		}
	}
	return out
}

// SwitchPort returns the port as people know it: its name, which switches that
// identify ports by MAC address put into the description.
func (n *Neighbor) SwitchPort() string {
	if n.PortDescription != "" && n.Port.Kind == MAC {
		return n.PortDescription
	}
	return n.Port.Text
}
