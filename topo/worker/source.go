package worker

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Source knows where links end or which groups the node is in: topo/worker/ib,
// lldp, static and clustermanager. Discover takes no longer than its context;
// what needs longer is done beside it, and Options.Changed set when it is done.
type Source interface {
	Kind() v1alpha1.Source
	Discover(ctx context.Context, q Query) Report
}

// NodeLabels takes the groups of a node from labels of its Node, as clouds and provisioning tools
// write them: for machines with invisible cables, such as virtual functions of InfiniBand HCAs.
type NodeLabels struct{}

// Kind implements [Source].
func (NodeLabels) Kind() v1alpha1.Source { return v1alpha1.SourceNodeLabels }

// Discover takes the configured labels that the Node has, and skips the others.
func (NodeLabels) Discover(_ context.Context, q Query) Report {
	var r Report
	for _, key := range q.Topology.PathLabels {
		if value := q.Labels[string(key)]; value != "" {
			r.Path = append(r.Path, value)
		}
	}
	return r
}

// Query holds the questions to a source in one pass.
type Query struct {
	// Node is the node's name.
	Node  string
	Ports []Port
	// Labels are the Node's, if the configuration needs them.
	Labels map[string]string
	// Topology is the node's configuration: which sources to use, and where
	// files and servers are. A disabled source answers nothing
	// and closes what it holds.
	Topology config.Topology
	// Leaves lists the switches to report uplinks of, Uplinks the last reported uplinks.
	Leaves  []string
	Uplinks []v1alpha1.Uplink
	// Counted is the time of the newest reading of the node's counters: once for each a source reads the counters of
	// the switches' ports.
	Counted time.Time
}

// Port is one port of the machine: its part of the report without the switch, and the devices
// through which a source reaches it.
type Port struct {
	v1alpha1.Rail
	// Netdevs are the Ethernet devices on which the switch's frames arrive:
	// the slave under a LAG, else the port's own.
	Netdevs []string
	// UMAD are the names of the HCA's devices for management datagrams, of
	// all its ports.
	UMAD []string
	// Subnet is the prefix of the InfiniBand subnet, in 16 hex digits.
	Subnet string
	// LID and SMLID are the addresses of the port and of its subnet manager, or 0; PKeyIndex is the
	// index of the default partition.
	LID, SMLID, PKeyIndex uint16
	// Virtual means a virtual function: it has no SMI, so it cannot ask its
	// switch, only the subnet manager about it.
	Virtual bool
}

// PortKey names a port on its node.
type PortKey struct {
	// ID is the HCA's identity, Port its port number, from 1.
	ID   string
	Port int32
	// Netdev is the slave under a LAG; empty for a port with one cable.
	Netdev string
}

// Key returns the port's.
func (p *Port) Key() PortKey { return keyOf(&p.Rail) }

func keyOf(r *v1alpha1.Rail) PortKey { return PortKey{r.ID, r.Port, r.Netdev} }

// Up reports whether the far end could answer.
func (p *Port) Up() bool {
	return p.LinkState == v1alpha1.LinkActive || p.LinkState == v1alpha1.LinkArmed || p.LinkState == v1alpha1.LinkInit
}

// Link is the switch port at the other end of a port's cable.
type Link struct {
	PortKey
	Switch v1alpha1.Switch
	// SwitchPort is the switch's port as the source spells it.
	SwitchPort string
	// Confidence is in percent; see [v1alpha1.Rail].
	Confidence int32
	// Counters has the switch port's counters, if they were read in this pass.
	Counters *v1alpha1.Counters
}

// Absence is the reason why a source reports no link of a port, or no path.
type Absence uint8

// The absences.
const (
	// Unknown means that the source cannot know.
	Unknown Absence = iota
	// Pending means that an answer may still come: it is too early to report its absence.
	Pending
	// Unavailable means that the source cannot know: the link is down, or
	// asking failed. What was known before is the best guess.
	Unavailable
)

// Report is a source's answer.
type Report struct {
	Links []Link
	// NoLink has the ports without a link, unless that is Unknown.
	NoLink map[PortKey]Absence
	// Path are the node's groups, top first. NoPath is why it is empty.
	Path   []string
	NoPath Absence
	// Uplinks lists the known uplinks of the requested leaves.
	Uplinks []v1alpha1.Uplink
	// Skipped lists what could not be read. Reasons stay the same while nothing changes: they
	// contain no times or counters.
	Skipped []v1alpha1.Skipped
	// Listening is set by a source that waits for frames of others and notices their absence only
	// by silence.
	Listening bool
	// Stale is set if the reported or remembered answer of the source is old.
	Stale *Staleness
}

// Staleness is since when a source is silent, and why.
type Staleness struct {
	// Since is the time of the last good answer; zero if it is older than the first query.
	Since  time.Time
	Reason string
}

// Silent notes that the source is silent since a time: the earliest that is
// known of several.
func (r *Report) Silent(since time.Time, reason string) {
	if r.Stale == nil || r.Stale.Since.IsZero() || !since.IsZero() && since.Before(r.Stale.Since) {
		r.Stale = &Staleness{since, Text(reason, MaxReason)}
	}
}

// Nothing notes why the source knows neither the groups nor any link.
func (r *Report) Nothing(q *Query, why Absence) {
	r.NoPath = why
	for i := range q.Ports {
		r.Without(q.Ports[i].Key(), why)
	}
}

// Without notes why a port has no link.
func (r *Report) Without(k PortKey, a Absence) {
	if r.NoLink == nil {
		r.NoLink = map[PortKey]Absence{}
	}
	r.NoLink[k] = a
}

// Skip notes what could not be read.
func (r *Report) Skip(name, reason string) {
	r.Skipped = append(r.Skipped, skipped(name, reason))
}

func skipped(name, reason string) v1alpha1.Skipped {
	return v1alpha1.Skipped{Name: Text(name, MaxName), Reason: Text(reason, MaxReason)}
}

// Place is the position of a node as people or a server recorded it.
type Place struct {
	// Path are its groups, top first.
	Path []string
	// Rails have number, plane and the switch port that they lead to.
	Rails []v1alpha1.Rail
}

// board matches the description of a board of a director: MF0;director:CS8500/L07/U1.
var board = regexp.MustCompile(`^(MF\d+;[^/]+)/([LS]\d+/U\d+)$`)

// Enter adds a place to the report. Its rails are rails of HCAs with role fabric.
func (r *Report) Enter(q *Query, source v1alpha1.Source, place *Place, confidence int32) {
	r.Path = place.Path
	for i := range place.Rails {
		rail, found := &place.Rails[i], false
		for j := range q.Ports {
			p := &q.Ports[j]
			if p.Role == string(machine.RoleFabric) && p.Rail.Rail == rail.Rail && p.Plane == rail.Plane {
				found = true
				end := Link{PortKey: p.Key(), Switch: *rail.Switch, SwitchPort: rail.SwitchPort, Confidence: confidence}
				if m := board.FindStringSubmatch(end.Switch.Name); m != nil { // One of several of a director.
					end.Switch = v1alpha1.Switch{ID: m[1], Name: m[1]}
					end.SwitchPort = strings.TrimSuffix(m[2]+"/"+end.SwitchPort, "/")
				}
				r.Links = append(r.Links, end)
			}
		}
		if !found {
			r.Skip(string(source), fmt.Sprintf("rail %d, plane %d: not on this node", rail.Rail, rail.Plane))
		}
	}
}

// The bounds of a NodeTopology. Those of texts are in bytes; the schema counts
// characters, which are fewer.
const (
	MaxPath       = 8
	MaxRails      = 128
	MaxPlanes     = 16
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
