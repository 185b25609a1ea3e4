package fabric

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/api/machine"
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
	// Report is the node's NodeTopology, nil if there is none.
	Report *Report
	// Heartbeat is when the worker last ended a pass; zero if unknown.
	Heartbeat time.Time
}

// maxPorts is how many ports of one report are read.
const maxPorts = 128

// leaf is a switch at which nodes' links end.
type leaf = hub[*node]

// port is a rail of role fabric: one port, and the leaf at the other end of its
// cable, nil if it is unknown or not trusted.
type port struct {
	*rail
	leaf *leaf
}

// samePort reports whether two ports are equal in all that the tree shows.
func samePort(a, b port) bool { return a.leaf == b.leaf && sameRail(a.rail, b.rail) }

// sameFar reports whether two ports end at a switch of one name.
func sameFar(a, b port) bool {
	return a.far == b.far || a.far != nil && b.far != nil && *a.far == *b.far
}

// sameLink reports whether two links start and end alike.
func sameLink(a, b port) bool { return a.leaf == b.leaf && a.position() == b.position() }

// node is a node of the tree.
type node struct {
	Node
	ports  []port // By rail, plane and ID.
	shape  *shape // Nil without a report.
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

	// isGone is set once it is removed.
	isChanged, isMoved, isGone bool
	// isRecounted: the node is among the changes of hcas.
	isRecounted bool
}

// trusted is the least confidence, in percent, with which a switch counts; 0
// means that the source does not grade.
const trusted = 50

// ports are a report's ports with their leaves.
func (b *Builder) ports(r *Report) []port {
	if r == nil {
		return nil
	}
	out := make([]port, 0, min(len(r.rails), maxPorts))
	for i := range r.rails {
		p := port{rail: &r.rails[i]}
		if p.role != string(machine.RoleFabric) || len(out) == maxPorts ||
			p.device.rail < 0 || p.device.rail >= maxRail || p.plane < 0 || p.plane >= maxPlane {
			continue
		}
		if p.far != nil && p.far.ID != "" && (p.confidence == 0 || p.confidence >= trusted) {
			p.leaf = b.leaf(SwitchID(p.far.ID), p.position())
		}
		out = append(out, p)
	}
	slices.SortStableFunc(out, comparePorts)
	return out
}

const recent = 256

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
func (n *node) on(id string) bool {
	return slices.ContainsFunc(n.ports, func(p port) bool { return p.leaf != nil && p.leaf.id == id })
}

// upLeaves are the leaves that the node is on and reports uplinks of.
func (n *node) upLeaves() []string {
	var out []string
	for _, u := range n.Report.uplinks() {
		if id := SwitchID(u.Leaf); n.on(id) && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// links are the node's links to leaves.
func (n *node) links() []link[*node] {
	out := make([]link[*node], 0, len(n.ports))
	for i := range n.ports {
		if p := &n.ports[i]; p.leaf != nil {
			out = append(out, link[*node]{p.leaf, p.position()})
		}
	}
	return out
}

func comparePorts(a, b port) int {
	if c := cmp.Compare(a.position(), b.position()); c != 0 {
		return c
	}
	return cmp.Or(strings.Compare(a.id, b.id), cmp.Compare(a.number, b.number), strings.Compare(a.netdev, b.netdev))
}

// SwitchID brings the spellings of one GUID or MAC address to one:
// 0x2c5eab0300c26480, 2c5e:ab03:00c2:6480 and 2C:5E:AB:00:64:80 become lower-case hex digits.
func SwitchID(id string) string {
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
