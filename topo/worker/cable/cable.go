// Package cable is what the sources of topo/worker talk about: the ports of
// one machine, what is at the other end of each, and why that is sometimes not
// known.
//
// It owns the numbering of rails and planes. It is pure: it reads no hardware
// and asks nobody.
package cable

import (
	"context"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Key names one end of a cable on its node.
type Key struct {
	// ID is the HCA's identity, Port its port number, from 1.
	ID   string
	Port int
	// Netdev is the slave under a LAG; empty for a port with one cable.
	Netdev string
}

// Port is one end of a cable.
type Port struct {
	Key
	// HCA is the RDMA device's name, GUID its node GUID as sysfs writes it.
	HCA, GUID string
	Role      machine.Role
	// Rail and Plane are as in [v1alpha1.Rail].
	Rail, Plane int
	// GPUs are the UUIDs of the GPUs next to the HCA.
	GPUs []string
	// LinkLayer and State are the words of [machine.Port].
	LinkLayer, State string
	// Gbps is the rate, 0 if unknown.
	Gbps float64
	// Netdevs are the Ethernet devices on which the switch's frames arrive:
	// the slave under a LAG, else the port's own.
	Netdevs []string
	// UMAD are the names of the HCA's devices for management datagrams, of
	// all its ports.
	UMAD []string
}

// Up tells whether the far end could answer.
func (p *Port) Up() bool {
	return p.State == machine.PortActive || p.State == machine.PortArmed || p.State == machine.PortInit
}

// Question is what a source is asked in one pass.
type Question struct {
	// Node is the node's name.
	Node  string
	Ports []Port
	// Topology is the node's configuration: which sources to use, and where
	// files and servers are. A source that is not to be used answers nothing
	// and lets go of what it holds.
	Topology config.Topology
}

// Source is who knows where cables end or which groups the node is in. Look
// takes no longer than its context; what needs longer is done beside it.
type Source interface {
	Kind() v1alpha1.Source
	Look(ctx context.Context, q Question) Report
}

// End is the far end of a cable.
type End struct {
	Key
	Switch v1alpha1.Switch
	// SwitchPort is the switch's port as the source spells it.
	SwitchPort string
	// Confidence is in percent; see [v1alpha1.Rail].
	Confidence int32
}

// Doubt is why a source says nothing about a port or a path.
type Doubt uint8

// The doubts.
const (
	// Silent is no doubt: there is nothing.
	Silent Doubt = iota
	// Waiting means that an answer may still come: it is too early to say
	// that there is none.
	Waiting
	// Blind means that the source cannot see: the link is down, or asking
	// failed. What was known before is the best guess.
	Blind
)

// Report is a source's answer.
type Report struct {
	Ends []End
	// Doubts are about ports without an End.
	Doubts map[Key]Doubt
	// Path are the node's groups, top first. PathDoubt says why it is empty.
	Path      []string
	PathDoubt Doubt
	// Skipped is what could not be read. Reasons stay the same while nothing
	// changes: no times, no counters.
	Skipped []v1alpha1.Skipped
}

// Doubt notes why there is no answer about a port.
func (r *Report) Doubt(k Key, d Doubt) {
	if r.Doubts == nil {
		r.Doubts = map[Key]Doubt{}
	}
	r.Doubts[k] = d
}

// Skip notes what could not be read.
func (r *Report) Skip(name, reason string) {
	r.Skipped = append(r.Skipped, v1alpha1.Skipped{Name: Text(name, MaxName), Reason: Text(reason, MaxReason)})
}

// The bounds of texts in a NodeTopology, in bytes; the schema counts
// characters, which are fewer.
const (
	MaxName       = 128
	MaxReason     = 256
	MaxSwitchName = 256
)

// Text makes a text of outside bytes fit to be shown and stored: valid UTF-8,
// nothing but printable characters ("?" for others), no space around, and at
// most limit bytes. It ends at the first NUL.
func Text[T ~string | ~[]byte](raw T, limit int) string {
	s, _, _ := strings.Cut(string(raw[:min(len(raw), 4*limit)]), "\x00")
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s))
	for len(s) > limit {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return strings.TrimSpace(s)
}
