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
	// Names are the values of the node's topology labels: the groups of any
	// kind that it was in. They keep names stable.
	Names []string
	// Report is the node's NodeTopology, nil if there is none. Of its rails
	// nothing is kept but strings and switches, which many rails can share;
	// the rest is kept: it must not be written to.
	Report *v1alpha1.NodeTopologySpec
	// Heartbeat is when the worker last ended a pass; zero if unknown.
	Heartbeat time.Time
}

// maxPorts is how many ports of one report are read.
const maxPorts = 128

// device is what a port is on its own node. Nodes of one model have equal ones,
// and share them.
type device struct {
	rail, plane, number int32
	hca, id, netdev     string
	active, infiniband  bool
}

// position numbers the rails and planes.
func (d *device) position() int32 { return positionOf(d.rail, d.plane) }

func positionOf(rail, plane int32) int32 { return rail*maxPlane + plane }

// maxRail and maxPlane bound the numbers that a report can use.
const maxRail, maxPlane = 128, 16

// leaf is a switch at which nodes' links end.
type leaf = hub[*node]

// port is what is kept of a v1alpha1.Rail of role fabric: one port and the leaf
// at the other end of its cable.
type port struct {
	*device
	// far is the switch as it was reported, nil if unknown or not trusted,
	// leaf is that switch, and leafPort its port.
	leaf     *leaf
	far      *v1alpha1.Switch
	leafPort string
	guid     uint64
	// since is when the port became what it is, in seconds since 1970; 0 is
	// unknown.
	since int64
}

func (p *port) leafName() string {
	if p.far == nil {
		return ""
	}
	return p.far.Name
}

// samePort reports whether two ports are equal in all that the tree shows.
func samePort(a, b port) bool {
	return sameLink(a, b) && a.guid == b.guid && a.since == b.since && (a.device == b.device || *a.device == *b.device) &&
		a.leafName() == b.leafName() && a.leafPort == b.leafPort
}

// sameLink reports whether two links start and end alike.
func sameLink(a, b port) bool { return a.leaf == b.leaf && a.position() == b.position() }

// report is what is kept of a Node.
type report struct {
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

	// upLeaves are the leaves that it is on and reports uplinks of.
	upLeaves []string
}

// node is a node of the tree.
type node struct {
	name string
	report
	member member[*node]
	// group is the leaf group, nil without one; block the part of it.
	group *leafGroup
	block string
	// chain are the domains by level, nil where the node has none; home is the
	// one that shows it.
	chain []*domain
	home  *domain
	// cabling are the faults of its cabling. badPath is set if its path makes
	// no sense, dissent are the levels at which others contradict it, by bit.
	cabling []Finding
	badPath bool
	dissent uint32
	shown   *Element
	// overdue is set while shown reports its heartbeat.
	overdue bool

	isChanged, isMoved, isGone bool
}

// reader makes reports of Nodes. It remembers what it read last: nodes of one
// model come one after the other.
type reader struct {
	devices [recent]*device // By position.
	// shape is of the accelerators.
	accelerators []v1alpha1.Accelerator
	shape        string
}

const recent = 256

// read leaves the leaves to resolve.
func (rd *reader) read(n *Node) report {
	r := report{ready: n.Ready, since: n.Since, beat: n.Heartbeat, names: n.Names, seen: n.Report != nil}
	if !r.seen {
		return r
	}
	r.nvlink, r.path, r.ups = n.Report.NVLinkDomain, n.Report.Path, n.Report.Uplinks
	r.shape = rd.shapeOf(n.Report.Accelerators)
	rails := n.Report.Rails
	r.ports = make([]port, 0, min(len(rails), maxPorts))
	for i := range rails {
		rail := &rails[i]
		if rail.Role == string(machine.RoleFabric) && len(r.ports) < maxPorts &&
			rail.Rail >= 0 && rail.Rail < maxRail && rail.Plane >= 0 && rail.Plane < maxPlane {
			r.ports = append(r.ports, rd.port(rail))
		}
	}
	if !slices.IsSortedFunc(r.ports, comparePorts) {
		slices.SortStableFunc(r.ports, comparePorts)
	}
	return r
}

// resolve finds the leaves of a report's ports.
func (b *Builder) resolve(r *report) {
	for i := range r.ports {
		if p := &r.ports[i]; p.far != nil {
			p.leaf = b.leaf(switchID(p.far.ID), p.position())
		}
	}
	for i := range r.ups {
		if id := switchID(r.ups[i].Leaf); r.on(id) && !slices.Contains(r.upLeaves, id) {
			r.upLeaves = append(r.upLeaves, id)
		}
	}
}

// leaf is the one with that ID. Neighbors by name are neighbors by cable, and
// come one after the other.
func (b *Builder) leaf(id string, position int32) *leaf {
	last := &b.recent[position%recent]
	if *last == nil || (*last).id != id || len((*last).links) == 0 {
		*last = b.leaves.at(id)
	}
	return *last
}

// on reports whether a cable of the node ends at that leaf.
func (r *report) on(id string) bool {
	return slices.ContainsFunc(r.ports, func(p port) bool { return p.leaf != nil && p.leaf.id == id })
}

// links are the node's links to leaves.
func (r *report) links() []link[*node] {
	out := make([]link[*node], 0, len(r.ports))
	for i := range r.ports {
		if p := &r.ports[i]; p.leaf != nil {
			out = append(out, link[*node]{p.leaf, p.position()})
		}
	}
	return out
}

// trusted is the least confidence, in percent, with which a switch counts; 0
// means that the source does not grade.
const trusted = 50

// lastSecond is the end of the year 9999 in UTC; JSON has no later time.
const lastSecond = 253402300799

func (rd *reader) port(rail *v1alpha1.Rail) port {
	p := port{device: rd.device(rail), guid: guidOf(rail.GUID)}
	if at := rail.Since; at != nil && at.Unix() > 0 && at.Unix() <= lastSecond {
		p.since = at.Unix()
	}
	if s := rail.Switch; s != nil && s.ID != "" && (rail.Confidence == 0 || rail.Confidence >= trusted) {
		p.far, p.leafPort = s, rail.SwitchPort
	}
	return p
}

func (rd *reader) device(rail *v1alpha1.Rail) *device {
	now := device{
		rail: rail.Rail, plane: rail.Plane, number: rail.Port, hca: rail.HCA, id: rail.ID, netdev: rail.Netdev,
		active: rail.LinkState == v1alpha1.LinkActive, infiniband: rail.Source == v1alpha1.SourceIB,
	}
	last := &rd.devices[now.position()%recent]
	if *last == nil || **last != now {
		*last = new(now)
	}
	return *last
}

// shapeOf is what nodes with equal hardware have in common.
func (rd *reader) shapeOf(all []v1alpha1.Accelerator) string {
	if slices.Equal(all, rd.accelerators) {
		return rd.shape
	}
	var shape strings.Builder
	for i, a := range all {
		if i > 0 {
			shape.WriteByte(',')
		}
		shape.WriteString(a.Product + "*" + strconv.Itoa(int(a.Count)))
	}
	rd.accelerators, rd.shape = all, shape.String()
	return rd.shape
}

func comparePorts(a, b port) int {
	if c := cmp.Compare(a.position(), b.position()); c != 0 {
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
