package fabric

import (
	"cmp"
	"slices"
	"strings"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

const (
	// maxRail and maxPlane bound the numbers that a report can use, maxPorts the ports read from it.
	maxRail, maxPlane, maxPorts = 128, 16, 128
	// trusted is the least confidence, in percent, with which a switch counts; 0 means that the source does not grade.
	trusted = 50
	// ambiguous is the confidence in a switch that is one of several on a cable: it accuses nobody.
	ambiguous = 60
)

// links holds a node's cables by one report. It is immutable.
type links struct {
	shape   *shape
	ports   []port   // By rail, plane and ID.
	ends    *ends    // Of the ports with a known leaf.
	uplinks []uplink // By the peer's ID.
}

// port is a rail of role fabric: one port, and the leaf at the other end of its cable, 0 if it is unknown or not
// trusted.
type port struct {
	*rail
	// position numbers the rails and planes.
	position, leaf int32
	active         bool
}

// neverUp reports whether the node's reports know neither a link of the port nor when it went down.
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

// symbols number switches by ID, and store equal shapes, paths and ends once.
type symbols struct {
	voting
	numbers map[string]int32
	shapes  map[string]*shape
	paths   map[names]*names
	// uplinks is another number after each change of the uplinks that nodes report.
	uplinks uint64
	// owners are the nodes by the GUIDs that only they report, sharers those of the others, by name.
	owners  map[uint64]*node
	sharers map[uint64][]*node
}

func newSymbols() symbols {
	return symbols{
		voting:  voting{ids: []string{""}, switches: make([]junction, 1), known: map[string]*ends{}},
		numbers: map[string]int32{"": 0}, shapes: map[string]*shape{}, paths: map[names]*names{},
		owners: map[uint64]*node{}, sharers: map[uint64][]*node{},
	}
}

// size counts the entries.
func (s *symbols) size() int { return len(s.ids) + len(s.shapes) + len(s.ends) + len(s.paths) }

// path returns the one copy of a path's names, nil without any.
func (s *symbols) path(p names) *names {
	if p == (names{}) {
		return nil
	}
	if s.paths[p] == nil {
		s.paths[p] = &p
	}
	return s.paths[p]
}

// number returns the number of the switch with an ID, in any spelling.
func (s *symbols) number(id string) int32 {
	id = SwitchID(id)
	n, ok := s.numbers[id]
	if !ok {
		n = int32(len(s.ids)) //nolint:gosec // See compact.
		s.ids, s.switches = append(s.ids, id), append(s.switches, junction{})
		s.numbers[id] = n
	}
	return n
}

// links reads a report.
func (s *symbols) links(r *Report) *links {
	room := min(len(r.rails), maxPorts)
	out := &links{ports: make([]port, 0, room)}
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
		if p := &out.ports[i]; p.leaf != 0 {
			links = append(links, link{p.leaf, p.position})
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
	positions := make([]int32, 0, len(ports))
	for i := range ports {
		positions = append(positions, ports[i].position)
	}
	positions = slices.Compact(positions)
	key := make([]byte, 0, 2*maxPorts)
	for _, a := range accelerators {
		key = append(append(key, a.Product...), ',')
	}
	text := len(key)
	for _, at := range positions {
		key = append(key, byte(at>>8), byte(at)) //nolint:gosec // Below maxRail * maxPlane.
	}
	out := s.shapes[string(key)]
	if out == nil {
		out = &shape{accelerators: string(key[:text]), positions: positions, last: -1, dark: make([]int, len(positions))}
		for i, at := range positions {
			if out.last = at; i == 0 || positions[i-1]/maxPlane != at/maxPlane {
				out.rails++
			}
		}
		s.shapes[string(key)] = out
	}
	return out
}

// enter counts a node and its GUIDs, by 1 or back by -1. Findings name the first sharer of a GUID or, of that one, the
// second.
func (s *symbols) enter(n *node, by int32) {
	n.links.shape.enter(n.links.ports, int(by))
	s.count(n.links.ends, by)
	if len(n.links.uplinks) > 0 {
		s.uplinks = newPrint()
	}
	for i, p := range n.links.ports {
		same := func(o port) bool { return o.guid == p.guid }
		if p.guid == 0 || slices.ContainsFunc(n.links.ports[:i], same) { // A port of the same HCA.
			continue
		}
		all := s.reporters(p.guid)
		if len(all) == 0 { // As a rule.
			s.owners[p.guid] = n
			continue
		}
		at, _ := find(all, n.Name)
		if by > 0 {
			all = slices.Insert(all, at, n)
		} else {
			all = slices.Delete(all, at, at+1)
		}
		delete(s.owners, p.guid)
		delete(s.sharers, p.guid)
		if len(all) == 1 {
			s.owners[p.guid] = all[0]
		} else if len(all) > 1 {
			s.sharers[p.guid] = all
		}
		for _, o := range all {
			if at <= 1 && o != n {
				o.print = newPrint()
			}
		}
	}
}

// reporters returns the nodes that report a GUID, by name.
func (s *symbols) reporters(guid uint64) []*node {
	if owner := s.owners[guid]; owner != nil {
		return []*node{owner}
	}
	return s.sharers[guid]
}

// find returns the index of a name in a list by names, or the index at which to insert it.
func find(list []*node, name string) (int, bool) {
	return slices.BinarySearchFunc(list, name, func(n *node, name string) int { return strings.Compare(n.Name, name) })
}

// SwitchID brings the spellings of one GUID or MAC address to one: 0x2c5eab0300c26480, 2c5e:ab03:00c2:6480 and
// 2C:5E:AB:00:64:80 become lower-case hex digits.
func SwitchID(id string) string {
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
