package fabric

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
)

// maxPorts bounds the ports read from one report.
const maxPorts = 128

// trusted is the least confidence, in percent, with which a switch counts; 0
// means that the source does not grade.
const trusted = 50

// links holds a node's cables by one report. It is immutable.
type links struct {
	shape *shape // Nil without a report.
	ports []port // By rail, plane and ID.
	ends  *ends  // Of the ports with a known leaf.
	// guids are the HCAs', each once.
	guids   []uint64
	uplinks []uplink // By the peer's ID.
}

// port is a rail of role fabric: one port, and the leaf at the other end of its
// cable, 0 if it is unknown or not trusted.
type port struct {
	*rail
	leaf int32
}

// uplink is a cable from a leaf to another switch, 0 if the report names none.
type uplink struct {
	leaf, peer int32
	name       string
}

// isOn reports whether a cable of the node ends at that leaf.
func (l *links) isOn(leaf int32) bool {
	return l.ends.to(leaf) > 0
}

// symbols number switches by ID, and store equal shapes once.
type symbols struct {
	ids     []string // Number 0 stands for no switch.
	numbers map[string]int32
	shapes  map[string]*shape
	ends    []*ends
	known   map[string]*ends
	// guids counts the nodes that report each GUID, doubles those that several do.
	guids   map[uint64]int32
	doubles int
	used    int // See compact.
	prints  int
	seed    maphash.Seed
}

// size counts the entries.
func (s *symbols) size() int { return len(s.ids) + len(s.shapes) + len(s.ends) }

// print is another number each time: sums of prints are equal if all of them are, and
// else by chance of one in 2^64.
func (s *symbols) print() uint64 {
	s.prints++
	return maphash.Comparable(s.seed, s.prints)
}

func newSymbols() symbols {
	return symbols{
		ids: []string{""}, numbers: map[string]int32{"": 0}, shapes: map[string]*shape{},
		known: map[string]*ends{}, guids: map[uint64]int32{}, seed: maphash.MakeSeed(),
	}
}

// number returns the number of the switch with an ID, in any spelling.
func (s *symbols) number(id string) int32 {
	id = SwitchID(id)
	n, ok := s.numbers[id]
	if !ok {
		n = int32(len(s.ids)) //nolint:gosec // See compact.
		s.ids = append(s.ids, id)
		s.numbers[id] = n
	}
	return n
}

// links reads a report, nil for none.
func (s *symbols) links(r *Report) *links {
	if r == nil {
		return &links{ends: s.connect(nil, true)}
	}
	out := &links{ports: make([]port, 0, min(len(r.rails), maxPorts)), guids: make([]uint64, 0, usualPorts)}
	for i := range r.rails {
		p := port{rail: &r.rails[i]}
		if p.role != string(machine.RoleFabric) || len(out.ports) == maxPorts ||
			p.device.rail < 0 || p.device.rail >= maxRail || p.plane < 0 || p.plane >= maxPlane {
			continue
		}
		if p.far != nil && (p.confidence == 0 || p.confidence >= trusted) {
			p.leaf = s.number(p.far.ID)
		}
		out.ports = append(out.ports, p)
	}
	slices.SortStableFunc(out.ports, comparePorts)
	links := make([]link, 0, len(out.ports))
	for i := range out.ports {
		p := &out.ports[i]
		if p.leaf != 0 {
			links = append(links, link{p.leaf, p.position()})
		}
		if p.guid != 0 && !slices.Contains(out.guids, p.guid) {
			out.guids = append(out.guids, p.guid)
		}
	}
	out.shape = s.shape(r.shape, out.ports)
	out.ends = s.connect(links, !out.shape.hasGPUs())
	for _, u := range r.uplinks() {
		out.uplinks = append(out.uplinks, uplink{s.number(u.Leaf), s.number(u.Peer), u.PeerName})
	}
	slices.SortStableFunc(out.uplinks, func(a, b uplink) int { return strings.Compare(s.ids[a.peer], s.ids[b.peer]) })
	return out
}

// connect has the ends with these links.
func (s *symbols) connect(links []link, follows bool) *ends {
	key := make([]byte, 1, 1+8*maxPorts)
	if follows {
		key[0] = 1
	}
	for _, l := range links {
		key = binary.NativeEndian.AppendUint32(key, uint32(l.to))   //nolint:gosec // Never negative.
		key = binary.NativeEndian.AppendUint32(key, uint32(l.rail)) //nolint:gosec // Never negative.
	}
	e := s.known[string(key)]
	if e == nil {
		e = newEnds(links)
		e.follows, e.print, e.number = follows, s.print(), int32(len(s.ends)) //nolint:gosec // See compact.
		s.ends, s.known[string(key)] = append(s.ends, e), e
	}
	return e
}

// usualPorts is the usual number of fabric ports on a node.
const usualPorts = 8

func comparePorts(a, b port) int {
	if c := cmp.Compare(a.position(), b.position()); c != 0 {
		return c
	}
	return cmp.Or(strings.Compare(a.id, b.id), cmp.Compare(a.number, b.number), strings.Compare(a.netdev, b.netdev))
}

// own counts a node's GUIDs once more, or once less.
func (s *symbols) own(l *links, by int32) {
	for _, guid := range l.guids {
		s.guids[guid] += by
		switch n := s.guids[guid]; {
		case n == 0:
			delete(s.guids, guid)
		case n == 1 && by < 0:
			s.doubles--
		case n == 2 && by > 0:
			s.doubles++
		}
	}
}

// duplicates returns the nodes of each GUID that several report.
func (s *symbols) duplicates(nodes []*node) map[uint64][]*node {
	if s.doubles == 0 {
		return nil
	}
	out := make(map[uint64][]*node, s.doubles)
	for _, n := range nodes {
		for _, guid := range n.links.guids {
			if s.guids[guid] > 1 {
				out[guid] = append(out[guid], n)
			}
		}
	}
	return out
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
