package snapshot

import (
	"slices"
	"strconv"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/topo/fabric"
)

// PortList is the answer of GET /v1/ports: cables by both of their ends.
type PortList struct {
	// Ports are ordered by the tree, then by rail and plane.
	Ports []Port `json:"ports"`
	// Uplinks lists the uplinks of the requested switch.
	Uplinks []v1alpha1.Uplink `json:"uplinks,omitempty"`
	// Omitted is the number of ports beyond the bound.
	Omitted int `json:"omitted,omitempty"`
}

// Port is a port of the fabric on a node, and the switch port behind it.
type Port struct {
	Node   string `json:"node"`
	Status string `json:"status"`
	// Group is the lowest group of the fabric that holds the node.
	Group        string `json:"group,omitempty"`
	NVLinkDomain string `json:"nvlinkDomain,omitempty"`
	// Foreign is a port of a node outside the group that was asked for, on one of
	// the group's leaves.
	Foreign bool `json:"foreign,omitempty"`
	v1alpha1.Rail
	// Finding describes the fault; a missing port has only a finding.
	Finding *fabric.Finding `json:"finding,omitempty"`
	// Test is the last result of heddle fabric test.
	Test *v1alpha1.LinkResult `json:"test,omitempty"`
}

// PortQuery selects ports. One of Group and Switch is set.
type PortQuery struct {
	// Kind and Group are a group's or a crossing domain's; any kind if empty.
	Kind, Group string
	// Switch is the ID or the name of a switch, SwitchPort one of its ports.
	Switch, SwitchPort string
}

// maxPorts bounds an answer: a group of 512 nodes with 8 rails.
const maxPorts = 4096

// Ports returns the ports of a group and the ports of other groups on its leaves, or all ports that
// are on a switch or belong there. It returns false for an unknown group.
func (s *Snapshot) Ports(q PortQuery) (*PortList, bool) {
	p := portSearch{query: q, nodes: map[*fabric.Element]bool{}, leaves: map[string]bool{}}
	if q.Group != "" {
		groups := s.Tree.Select(q.Kind, q.Group)
		groups = slices.DeleteFunc(groups, func(e *fabric.Element) bool { return e.Kind == v1alpha1.KindNode })
		if len(groups) == 0 {
			return nil, false
		}
		for _, e := range fabric.All(groups[:1]) {
			for _, r := range e.Rails {
				p.leaves[r.Leaf.ID] = true
			}
			p.nodes[e] = true
		}
	}
	p.out.Ports = []Port{}
	for holders, e := range s.Tree.All() {
		n := s.Nodes[e.Name]
		if e.Kind != v1alpha1.KindNode || n == nil {
			continue
		}
		var spec v1alpha1.NodeTopologySpec
		if r := n.Believed(); r != nil {
			spec = *r.Spec()
		}
		group := ""
		for _, h := range holders {
			if !h.NVLink {
				group = h.Name
			}
		}
		p.node(e, group, &spec, n.Tests())
	}
	return &p.out, true
}

// portSearch gathers an answer.
type portSearch struct {
	query PortQuery
	// nodes are the group's, leaves the IDs of the switches that its cables should
	// go to.
	nodes  map[*fabric.Element]bool
	leaves map[string]bool
	out    PortList
}

func (p *portSearch) node(
	e *fabric.Element, group string, spec *v1alpha1.NodeTopologySpec, tests []v1alpha1.LinkTest,
) {
	one := Port{Node: e.Name, Status: e.Status, Group: group, NVLinkDomain: spec.NVLinkDomain, Foreign: !p.nodes[e]}
	one.Foreign = one.Foreign && p.query.Group != ""
	rest := slices.DeleteFunc(slices.Clone(e.Findings), func(f fabric.Finding) bool {
		return f.Kind == fabric.BadPath || f.Kind == fabric.Degraded
	})
	for i := range spec.Rails {
		r := &spec.Rails[i]
		if r.Role != string(machine.RoleFabric) {
			continue
		}
		one.Rail, one.Finding, one.Test = *r, nil, nil
		of := func(t v1alpha1.LinkTest) bool { return t.ID == r.ID && t.Port == r.Port && t.Netdev == r.Netdev }
		if at := slices.IndexFunc(tests, of); at >= 0 {
			one.Test = &tests[at].Results[0]
		}
		about := func(f fabric.Finding) bool { return f.Rail == r.Rail && f.Plane == r.Plane && f.ID == r.ID }
		if at := slices.IndexFunc(rest, about); at >= 0 {
			one.Finding = new(rest[at])
			rest = slices.Delete(rest, at, at+1)
		} else if at := slices.IndexFunc(e.Findings, about); at >= 0 { // Degraded.
			one.Finding = new(e.Findings[at])
		}
		p.put(&one)
	}
	for i := range rest { // No port of the report has them.
		f := &rest[i]
		one.Rail = v1alpha1.Rail{Rail: f.Rail, Plane: f.Plane, HCA: f.HCA, ID: f.ID, LinkState: v1alpha1.LinkUnknown}
		one.Finding, one.Test = f, nil
		p.put(&one)
	}
	for _, u := range spec.Uplinks {
		peer := p.is(u.Peer, u.PeerName, strconv.Itoa(int(u.PeerPort)))
		if peer || p.is(u.Leaf, "", strconv.Itoa(int(u.Port))) {
			p.out.Uplinks = append(p.out.Uplinks, u)
		}
	}
}

func (p *portSearch) put(one *Port) {
	if !p.wanted(one) {
		return
	}
	if len(p.out.Ports) == maxPorts {
		p.out.Omitted++
		return
	}
	p.out.Ports = append(p.out.Ports, *one)
}

// wanted reports whether the answer includes a port, also a port that should end on the switch and
// does not.
func (p *portSearch) wanted(one *Port) bool {
	if p.query.Group != "" {
		return !one.Foreign || one.Switch != nil && p.leaves[fabric.SwitchID(one.Switch.ID)]
	}
	if f := one.Finding; f != nil && p.is(f.Expected.ID, f.Expected.Name, f.Expected.Port) {
		return true
	}
	return one.Switch != nil && p.is(one.Switch.ID, one.Switch.Name, one.SwitchPort)
}

// is reports whether a switch port is the one that was asked for.
func (p *portSearch) is(id, name, port string) bool {
	if p.query.Switch == "" || id == "" || p.query.SwitchPort != "" && p.query.SwitchPort != port {
		return false
	}
	return name == p.query.Switch || fabric.SwitchID(id) == fabric.SwitchID(p.query.Switch)
}
