package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/fabric"
	"github.com/heddle-dev/heddle/topo/placement"
)

// Topology is the answer of GET /v1/topology: all but the ports of each node,
// which /v1/nodes/{name} has. Nothing in it depends on the replica or on when
// it is asked, but for StaleSince.
type Topology struct {
	// StaleSince is set if the API server has been silent for too long: the following fields show
	// the cluster at that time.
	StaleSince time.Time `json:"staleSince,omitzero"`
	// Levels are the kinds of groups that can be, top first.
	Levels []fabric.Level `json:"levels"`
	// Tree are the top-level elements.
	Tree []Element `json:"tree"`
	// Crossing are the NVLink domains that cross groups of the tree, with the
	// names of their nodes.
	Crossing []Domain     `json:"crossing,omitempty"`
	Nodes    fabric.Count `json:"nodes"`
	GPUs     GPUs         `json:"gpus"`
	// Findings are all cables that are not as they should be, by node.
	Findings []fabric.Finding `json:"findings"`
	// Ignored are reports that are not believed, by name.
	Ignored []Ignored `json:"ignored"`
	// StaleSources are the sources that are silent on some nodes.
	StaleSources []StaleSource `json:"staleSources,omitempty"`
	// Spares is the number of idle nodes of each lowest group to keep for repair, or their percentage.
	Spares intstr.IntOrString `json:"spares,omitzero"`
}

// StaleSource is a source with an old answer in use on some nodes.
type StaleSource struct {
	Source v1alpha1.Source `json:"source"`
	// Since is the earliest of the nodes.
	Since time.Time `json:"since"`
	// Nodes is on how many it is silent.
	Nodes int `json:"nodes"`
}

// Domain is an NVLink domain that is across groups of the fabric: the nodes stand in
// the tree where their cables are.
type Domain struct {
	Name   string   `json:"name"`
	Kind   string   `json:"kind"`
	Status string   `json:"status"`
	Key    string   `json:"key"`
	Nodes  []string `json:"nodes"`
}

// Element is a group or a node.
type Element struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	Status string `json:"status"`
	// Key identifies a group: the ID of its first switch, an NVLink domain, a configured name.
	Key      string `json:"key,omitempty"`
	Product  string `json:"product,omitempty"`
	Cordoned bool   `json:"cordoned,omitempty"`
	// Spare is true for an idle node that heddle-scheduler keeps for the repair of running gangs.
	Spare   bool            `json:"spare,omitempty"`
	Reasons []fabric.Reason `json:"reasons,omitempty"`
	GPUs    GPUs            `json:"gpus"`
	// Nodes counts the nodes of a group.
	Nodes *fabric.Count `json:"nodes,omitempty"`
	// Rails are the leaves that a group's cables should go to.
	Rails []fabric.Rail `json:"rails,omitempty"`
	Child []Element     `json:"child,omitempty"`
}

// Ignored is a report that is not believed.
type Ignored struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Topology returns the answer of GET /v1/topology.
func (s *Snapshot) Topology() *Topology {
	t := &Topology{
		StaleSince: s.StaleSince, Levels: s.Levels, Tree: []Element{}, Crossing: s.crossing(), Nodes: s.Tree.Nodes,
		Findings: append([]fabric.Finding{}, s.Tree.Findings()...), Ignored: s.ignored(), StaleSources: s.StaleSources(),
		Spares: s.Spares,
	}
	for _, e := range s.Tree.Child {
		element := s.element(e)
		t.GPUs.add(element.GPUs)
		t.Tree = append(t.Tree, element)
	}
	return t
}

func (s *Snapshot) element(e *fabric.Element) Element {
	out := Element{Name: e.Name, Kind: e.Kind, Status: e.Status, Key: e.Key, Reasons: e.Reasons}
	if e.Kind == v1alpha1.KindNode {
		n := s.Nodes[e.Name]
		if n == nil {
			return out
		}
		out.GPUs = s.gpus(n)
		if n.Node != nil {
			out.Cordoned = n.Node.Cordoned
		}
		if r := n.Believed(); r != nil {
			out.Product = r.Product()
		}
		return out
	}
	out.Nodes, out.Rails = new(e.Nodes), e.Rails
	out.Child = make([]Element, len(e.Child))
	for i, c := range e.Child {
		out.Child[i] = s.element(c)
		out.GPUs.add(out.Child[i].GPUs)
	}
	s.spare(out.Child)
	return out
}

// spare marks the idle nodes of a group that are kept for repair, as heddle-scheduler chooses them.
func (s *Snapshot) spare(list []Element) {
	var idle []string
	nodes := 0
	for i := range list {
		if e := &list[i]; e.Nodes == nil && e.GPUs.Offered > 0 {
			nodes++
			if e.GPUs.Free != nil && *e.GPUs.Free == e.GPUs.Offered && e.Status != v1alpha1.StatusNotReady {
				idle = append(idle, e.Name)
			}
		}
	}
	spares := placement.Spares(s.Spares, nodes, idle)
	for i := range list {
		list[i].Spare = slices.Contains(spares, list[i].Name)
	}
}

func (s *Snapshot) crossing() []Domain {
	var out []Domain
	for _, e := range s.Tree.Crossing {
		d := Domain{Name: e.Name, Kind: e.Kind, Status: e.Status, Key: e.Key}
		for _, n := range e.Child {
			d.Nodes = append(d.Nodes, n.Name)
		}
		out = append(out, d)
	}
	return out
}

// maxIgnored bounds the list of reports that are not believed.
const maxIgnored = 1000

func (s *Snapshot) ignored() []Ignored {
	out := []Ignored{}
	for _, n := range s.Nodes {
		if reason := n.Ignored(); reason != "" {
			out = append(out, Ignored{n.Name, reason})
		}
	}
	slices.SortFunc(out, func(a, b Ignored) int { return cmp.Compare(a.Name, b.Name) })
	return out[:min(len(out), maxIgnored)]
}

// StaleSources returns the silent sources, by name.
func (s *Snapshot) StaleSources() []StaleSource {
	all := map[v1alpha1.Source]*StaleSource{}
	for _, n := range s.Nodes {
		r := n.Believed()
		if r == nil {
			continue
		}
		for _, one := range r.Rest.Stale {
			sum, since := all[one.Source], wellknown.Moment(one.Since.Time)
			if sum == nil {
				sum = &StaleSource{Source: one.Source, Since: since}
				all[one.Source] = sum
			}
			sum.Nodes++
			if since.Before(sum.Since) {
				sum.Since = since
			}
		}
	}
	var out []StaleSource
	for _, source := range slices.Sorted(maps.Keys(all)) {
		out = append(out, *all[source])
	}
	return out
}
