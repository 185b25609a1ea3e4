package fabric

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

const (
	// maxRail and maxPlane bound the numbers that a report can use, maxPorts the ports read from it.
	maxRail, maxPlane, maxPorts = 128, 16, 128
	// trusted is the least confidence, in percent, with which a switch counts; 0
	// means that the source does not grade.
	trusted = 50
)

// links holds a node's cables by one report. It is immutable.
type links struct {
	shape *shape
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
	// position numbers the rails and planes.
	position, leaf int32
	active         bool
}

// neverUp reports whether the node's reports know neither a link of the port nor
// when it went down.
func (p *port) neverUp() bool { return !p.active && p.far.Value().ID == "" && p.since == 0 }

func comparePorts(a, b port) int {
	if c := cmp.Compare(a.position, b.position); c != 0 {
		return c
	}
	x, y := a.device.Value(), b.device.Value()
	return cmp.Or(strings.Compare(x.id, y.id), cmp.Compare(x.number, y.number), strings.Compare(x.netdev, y.netdev))
}

// uplink is a cable from a leaf to another switch, 0 if the report names none.
type uplink struct {
	leaf, peer int32
	name       string
}

// symbols number switches by ID, and store equal shapes and ends once.
type symbols struct {
	ids     []string // Number 0 stands for no switch.
	numbers map[string]int32
	shapes  map[string]*shape
	ends    []*ends
	known   map[string]*ends
	// owners has a node of each GUID, shared all nodes of those with several, by name.
	owners map[uint64]*node
	shared map[uint64][]*node
	prints int
	seed   maphash.Seed
}

func newSymbols() symbols {
	return symbols{
		ids: []string{""}, numbers: map[string]int32{"": 0}, shapes: map[string]*shape{},
		known: map[string]*ends{}, owners: map[uint64]*node{}, shared: map[uint64][]*node{}, seed: maphash.MakeSeed(),
	}
}

// size counts the entries.
func (s *symbols) size() int { return len(s.ids) + len(s.shapes) + len(s.ends) }

// print is another number each time: sums of prints are equal if all of them are, and
// else by chance of one in 2^64.
func (s *symbols) print() uint64 {
	s.prints++
	return maphash.Comparable(s.seed, s.prints)
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

// usualPorts is the usual number of fabric ports on a node.
const usualPorts = 8

// links reads a report.
func (s *symbols) links(r *Report) *links {
	out := &links{ports: make([]port, 0, min(len(r.rails), maxPorts)), guids: make([]uint64, 0, usualPorts)}
	for i := range r.rails {
		d := r.rails[i].device.Value()
		if d.role != string(machine.RoleFabric) || len(out.ports) == maxPorts ||
			d.rail < 0 || d.rail >= maxRail || d.plane < 0 || d.plane >= maxPlane {
			continue
		}
		p := port{rail: &r.rails[i], position: d.rail*maxPlane + d.plane, active: d.state == v1alpha1.LinkActive}
		if d.confidence == 0 || d.confidence >= trusted {
			p.leaf = s.number(p.far.Value().ID)
		}
		out.ports = append(out.ports, p)
	}
	slices.SortStableFunc(out.ports, comparePorts)
	links := make([]link, 0, len(out.ports))
	for i := range out.ports {
		p := &out.ports[i]
		if p.leaf != 0 {
			links = append(links, link{p.leaf, p.position})
		}
		if p.guid != 0 && !slices.Contains(out.guids, p.guid) {
			out.guids = append(out.guids, p.guid)
		}
	}
	out.shape = s.shape(r.Rest.Accelerators, out.ports)
	out.ends = s.connect(links, !out.shape.hasGPUs())
	for _, u := range r.Rest.Uplinks {
		out.uplinks = append(out.uplinks, uplink{s.number(u.Leaf), s.number(u.Peer), u.PeerName})
	}
	slices.SortStableFunc(out.uplinks, func(a, b uplink) int { return strings.Compare(s.ids[a.peer], s.ids[b.peer]) })
	return out
}

// shape returns the shape of a node with these accelerators and sorted ports.
func (s *symbols) shape(accelerators []v1alpha1.Accelerator, ports []port) *shape {
	positions := make([]int32, 0, usualPorts)
	for i := range ports {
		positions = append(positions, ports[i].position)
	}
	positions = slices.Compact(positions)
	key := make([]byte, 0, 2*maxPorts)
	for _, a := range accelerators {
		key = fmt.Appendf(key, "%s*%d,", a.Product, a.Count)
	}
	text := len(key)
	for _, at := range positions {
		key = append(key, byte(at>>8), byte(at)) //nolint:gosec // Below maxRail * maxPlane.
	}
	out := s.shapes[string(key)]
	if out == nil {
		out = &shape{accelerators: string(key[:text]), positions: positions}
		for i, at := range positions {
			if i == 0 || positions[i-1]/maxPlane != at/maxPlane {
				out.rails++
			}
		}
		s.shapes[string(key)] = out
	}
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
		e.members, e.follows, e.print, e.number = 0, follows, s.print(), int32(len(s.ends)) //nolint:gosec // See compact.
		s.ends, s.known[string(key)] = append(s.ends, e), e
	}
	return e
}

// enter counts a node and its GUIDs.
func (s *symbols) enter(n *node) {
	n.links.shape.nodes++
	n.links.ends.members++
	for _, guid := range n.links.guids {
		owner := s.owners[guid]
		if owner == nil {
			s.owners[guid] = n
			continue
		}
		all := s.shared[guid]
		if all == nil {
			all = []*node{owner}
		}
		i := find(all, n)
		s.share(guid, slices.Insert(all, i, n), i)
	}
}

// leave undoes enter.
func (s *symbols) leave(n *node) {
	n.links.shape.nodes--
	n.links.ends.members--
	for _, guid := range n.links.guids {
		all := s.shared[guid]
		if all == nil {
			delete(s.owners, guid)
			continue
		}
		i := find(all, n)
		s.share(guid, slices.Delete(all, i, i+1), i)
	}
}

// share stores the owners of a GUID, at least one, after a change of the i-th. Findings name the first
// or, of that one, the second.
func (s *symbols) share(guid uint64, all []*node, i int) {
	for _, n := range all {
		if i <= 1 {
			n.print = s.print()
		}
	}
	if s.owners[guid], s.shared[guid] = all[0], all; len(all) == 1 {
		delete(s.shared, guid)
	}
}

// find returns the index of a node in a list by names, or the index at which to insert it.
func find(list []*node, n *node) int {
	i, _ := slices.BinarySearchFunc(list, n, func(a, b *node) int { return strings.Compare(a.Name, b.Name) })
	return i
}

// SwitchID brings the spellings of one GUID or MAC address to one:
// 0x2c5eab0300c26480, 2c5e:ab03:00c2:6480 and 2C:5E:AB:00:64:80 become lower-case hex digits.
func SwitchID(id string) string {
	if hexadecimal(id) {
		return id
	}
	plain := strings.TrimPrefix(strings.ToLower(id), "0x")
	if hexadecimal(plain) {
		return plain
	}
	plain = strings.ReplaceAll(plain, ":", "")
	if !hexadecimal(plain) || len(plain) != 12 && len(plain) != 16 {
		return id
	}
	return plain
}

func hexadecimal(s string) bool { return s != "" && strings.Trim(s, "0123456789abcdef") == "" }
