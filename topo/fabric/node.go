package fabric

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Node is what is known of one node.
type Node struct {
	Name string
	// Ready is whether the Node's condition Ready is True; Since is when that
	// condition last changed.
	Ready bool
	Since time.Time
	// Names are the groups that the node has been told it is in, of any
	// kind: the values of its topology labels. They keep names stable.
	Names []string
	// Report is the node's NodeTopology, nil if there is none. Of its rails
	// nothing is kept but strings and switches, which many rails can share;
	// the rest is kept as an informer keeps it: nobody may write to it any
	// more.
	Report *v1alpha1.NodeTopologySpec
	// Heartbeat is when the worker last ended a pass; zero if unknown.
	Heartbeat time.Time
}

// maxPorts is how many ports of one report are read.
const maxPorts = 128

// socket is what a port is on its own node. Nodes of one model have equal ones,
// and share them.
type socket struct {
	rail, plane, number int32
	hca, id, netdev     string
	alive               bool
}

func (s *socket) hint() int32 { return hintOf(s.rail, s.plane) }

// models are what one reader has seen last: nodes of one model come one after
// the other.
type models struct {
	// sockets are by hint.
	sockets [recents]*socket
	// shape is of the accelerators.
	accelerators []v1alpha1.Accelerator
	shape        string
}

// shapeOf is what nodes with equal hardware have in common.
func (m *models) shapeOf(all []v1alpha1.Accelerator) string {
	if slices.Equal(all, m.accelerators) {
		return m.shape
	}
	var shape strings.Builder
	for i, a := range all {
		if i > 0 {
			shape.WriteByte(',')
		}
		shape.WriteString(a.Product + "*" + strconv.Itoa(int(a.Count)))
	}
	m.accelerators, m.shape = all, shape.String()
	return m.shape
}

func (m *models) socket(rail *v1alpha1.Rail) *socket {
	now := socket{
		rail: rail.Rail, plane: rail.Plane, number: rail.Port, hca: rail.HCA, id: rail.ID, netdev: rail.Netdev,
		alive: rail.LinkState == v1alpha1.LinkActive,
	}
	last := &m.sockets[now.hint()%recents]
	if *last == nil || **last != now {
		*last = new(now)
	}
	return *last
}

// port is one cable of the fabric as its node reports it.
type port struct {
	*socket
	// leaf is the switch's canonical ID, "" if unknown or not believed; far is
	// the switch as it was reported, and leafPort its port.
	leaf     string
	far      *v1alpha1.Switch
	leafPort string
	guid     uint64
	// since is when the port became what it is, in seconds since 1970; 0 is
	// unknown.
	since int64
}

func (p *port) leafName() string {
	if p.leaf == "" {
		return ""
	}
	return p.far.Name
}

// samePort tells whether two ports say the same, as far as the map listens.
func samePort(a, b port) bool {
	return samePlug(a, b) && a.guid == b.guid && a.since == b.since && (a.socket == b.socket || *a.socket == *b.socket) &&
		a.leafName() == b.leafName() && a.leafPort == b.leafPort
}

// samePlug tells whether two cables start and end alike.
func samePlug(a, b port) bool { return a.leaf == b.leaf && a.hint() == b.hint() }

// reading is what is kept of a Node.
type reading struct {
	ready  bool
	since  time.Time
	beat   time.Time
	seen   bool // There is a report.
	names  []string
	shape  string // What nodes with equal hardware have in common.
	ports  []port // Fabric ports, by rail, plane and ID.
	nvlink string
	path   []string
	ups    []v1alpha1.Uplink

	// upLeaves are the leaves whose uplinks it reports and which it is on.
	upLeaves []string
}

// record is a node in the map.
type record struct {
	name string
	reading
	item item[*record]
	// cell is the leaf group, nil without one; block the part of it.
	cell  *cell
	block string
	// chain are the groups by level, nil where the node has none.
	chain []*branch
	// bad are the faults of its cabling. badPath says that its path makes no
	// sense, dissent at which levels others contradict it, by bit.
	bad     []Finding
	badPath bool
	dissent uint32
	// shown is what the tree says of it, below parent.
	shown  *Element
	parent *branch
	// overdue is what shown says of its heartbeat; look is when it may say
	// something else, alarm when it is looked at again; zero for never.
	overdue     bool
	look, alarm time.Time

	isDirty, isMoved, isGone bool
}

// read takes over a node's facts.
func (n *Node) read(known *models) reading {
	r := reading{ready: n.Ready, since: n.Since, beat: n.Heartbeat, names: n.Names, seen: n.Report != nil}
	if !r.seen {
		return r
	}
	r.nvlink, r.path, r.ups = n.Report.NVLinkDomain, n.Report.Path, n.Report.Uplinks
	r.shape = known.shapeOf(n.Report.Accelerators)
	rails := n.Report.Rails
	r.ports = make([]port, 0, min(len(rails), maxPorts))
	for i := range rails {
		rail := &rails[i]
		if rail.Role != string(machine.RoleFabric) || len(r.ports) == maxPorts ||
			rail.Rail < 0 || rail.Rail >= maxRail || rail.Plane < 0 || rail.Plane >= maxPlane {
			continue
		}
		r.ports = append(r.ports, readPort(rail, known))
	}
	if !slices.IsSortedFunc(r.ports, comparePorts) {
		slices.SortStableFunc(r.ports, comparePorts)
	}
	for i := range r.ups {
		leaf := switchID(r.ups[i].Leaf)
		if r.on(leaf) && !slices.Contains(r.upLeaves, leaf) {
			r.upLeaves = append(r.upLeaves, leaf)
		}
	}
	return r
}

// on tells whether a cable of the node ends in that leaf.
func (r *reading) on(leaf string) bool {
	return slices.ContainsFunc(r.ports, func(p port) bool { return p.leaf == leaf && leaf != "" })
}

// trusted is the least confidence, in percent, with which a switch counts; 0
// means that the source does not say.
const trusted = 50

// lastSecond is the end of the year 9999 in UTC; JSON has no later time.
const lastSecond = 253402300799

func readPort(rail *v1alpha1.Rail, known *models) port {
	p := port{socket: known.socket(rail), guid: guidOf(rail.GUID)}
	if at := rail.Since; at != nil && at.Unix() > 0 && at.Unix() <= lastSecond {
		p.since = at.Unix()
	}
	if s := rail.Switch; s != nil && (rail.Confidence == 0 || rail.Confidence >= trusted) {
		p.leaf, p.far, p.leafPort = switchID(s.ID), s, rail.SwitchPort
	}
	return p
}

// plug makes the node's cables to leaves. The ports share the leaves' strings.
func (r *record) plug(leaves *cluster[*record]) []cable[*record] {
	out := make([]cable[*record], 0, len(r.ports))
	for i := range r.ports {
		if p := &r.ports[i]; p.leaf != "" {
			f := leaves.recent[p.hint()%recents]
			if f == nil || f.mass == 0 || f.id != p.leaf {
				f = leaves.of(p.leaf)
				leaves.recent[p.hint()%recents] = f
			}
			p.leaf = f.id
			out = append(out, cable[*record]{f, p.hint()})
		}
	}
	return out
}

func comparePorts(a, b port) int {
	if c := cmp.Compare(a.hint(), b.hint()); c != 0 {
		return c
	}
	return cmp.Or(strings.Compare(a.id, b.id), cmp.Compare(a.number, b.number), strings.Compare(a.netdev, b.netdev))
}

// switchID brings the spellings of one GUID or MAC address to one:
// 0x2c5eab0300c26480, 2c5e:ab03:00c2:6480, 2C:5E:AB:00:64:80.
func switchID(id string) string {
	if hexadecimal(id) {
		return id
	}
	plain := strings.TrimPrefix(strings.ToLower(id), "0x")
	if !hexadecimal(plain) {
		stripped := strings.ReplaceAll(plain, ":", "")
		if !hexadecimal(stripped) || len(stripped) != 12 && len(stripped) != 16 {
			return id
		}
		plain = stripped
	}
	return plain
}

func hexadecimal(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return s != ""
}

// guidOf is a number for a GUID, 0 for none. What is no GUID is hashed.
func guidOf(s string) uint64 {
	var guid uint64
	digits := 0
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		case c == ':':
			continue
		default:
			digits = 99
		}
		guid = guid<<4 | uint64(c&0xf)
		digits++
	}
	if digits <= 16 {
		return guid
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // Never fails.
	return h.Sum64()
}
