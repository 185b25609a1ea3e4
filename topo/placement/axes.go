package placement

import (
	"slices"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Axes are one topology along both axes, where NVLink domains cross groups of the fabric
// so that no single tree has both whole. Each is in the form of GET /node_group, for [New].
type Axes struct {
	// Fabric has all groups of the fabric whole, and in them as groups of nodes the
	// parts of domains that they have. NVLink has all domains whole, each in the
	// lowest group of the fabric that has all of it, and in them their parts: of
	// domains that hold a gang the one that has it on fewest leaves comes first. Whole
	// is NVLink without parts: slices go into one domain.
	Fabric, NVLink, Whole []v1alpha1.Group
	// Kind is the kind of the domains.
	Kind string
	// cut are the kinds of the groups that domains cross.
	cut map[string]bool
}

// KindPart is the kind of the parts of domains. No level has it.
const KindPart = "nvlink-part"

// Crossing returns the groups of GET /node_group?axis=nvlink that cross those of GET
// /node_group: they are not among them.
func Crossing(groups, domains []v1alpha1.Group) []v1alpha1.Group {
	in := map[[2]string]bool{}
	for g := range v1alpha1.All(groups) {
		in[[2]string{g.Kind, g.Name}] = true
	}
	var out []v1alpha1.Group
	for _, d := range domains {
		if d.Kind != kindNode && !in[[2]string{d.Kind, d.Name}] && !slices.ContainsFunc(d.Child, isGroup) {
			out = append(out, d)
		}
	}
	return out
}

func isGroup(g v1alpha1.Group) bool { return g.Kind != kindNode }

// NewAxes makes the trees of the fabric's groups and of the domains that cross them;
// nil without any.
func NewAxes(groups, crossing []v1alpha1.Group) *Axes {
	if len(crossing) == 0 {
		return nil
	}
	s := splitter{
		Axes:   Axes{Kind: crossing[0].Kind, cut: map[string]bool{}},
		domain: map[string]*v1alpha1.Group{}, around: map[string][]*v1alpha1.Group{},
		part: map[string]v1alpha1.Group{}, whole: map[*v1alpha1.Group][]v1alpha1.Group{},
	}
	for i := range crossing {
		for _, n := range crossing[i].Child {
			s.domain[n.Name] = &crossing[i]
		}
	}
	root := v1alpha1.Group{Child: groups}
	s.locate([]*v1alpha1.Group{&root})
	for i := range crossing {
		s.findWhole(&crossing[i])
	}
	if len(s.whole) == 0 {
		return nil
	}
	s.Fabric, s.Whole = s.split(root, false), s.gather(&root)
	s.NVLink = s.split(v1alpha1.Group{Child: s.Whole}, true)
	axes := s.Axes // Without what they were made of, which is large.
	return &axes
}

// Cuts reports whether domains cross groups of a kind: none do without axes.
func (a *Axes) Cuts(kind string) bool { return a != nil && a.cut[kind] }

// splitter puts the nodes of domains together, or apart.
type splitter struct {
	Axes
	// By node: the domain that crosses groups, the groups around it, from the root
	// of all down, and the part of a domain that it is in, without nodes.
	domain map[string]*v1alpha1.Group
	around map[string][]*v1alpha1.Group
	part   map[string]v1alpha1.Group
	// whole are the domains by the lowest group that holds all of them.
	whole map[*v1alpha1.Group][]v1alpha1.Group
}

// locate finds what is around the nodes of domains, and their parts, in the last of
// the groups. A domain that crosses no group is one part.
func (s *splitter) locate(around []*v1alpha1.Group) {
	in := around[len(around)-1]
	for i := range in.Child {
		g := &in.Child[i]
		d := s.domain[g.Name]
		switch {
		case g.Kind != kindNode:
			s.locate(append(slices.Clip(around), g))
		case d != nil:
			p := v1alpha1.Group{Name: d.Name, Kind: KindPart, Status: d.Status}
			if len(around) > 1 {
				p.Name += " on " + in.Kind + " " + in.Name
			}
			s.around[g.Name], s.part[g.Name] = around, p
		case in.Kind == s.Kind:
			s.part[g.Name] = v1alpha1.Group{Name: in.Name, Kind: KindPart, Status: in.Status}
		}
	}
}

// findWhole finds where a domain is whole, and the kinds of groups that it crosses. Nodes
// that the tree does not have, or that are in another domain too, do not count.
func (s *splitter) findWhole(d *v1alpha1.Group) {
	nodes := slices.DeleteFunc(slices.Clone(d.Child), func(n v1alpha1.Group) bool {
		return s.around[n.Name] == nil || s.domain[n.Name] != d
	})
	if len(nodes) == 0 {
		return
	}
	common := s.around[nodes[0].Name]
	for _, n := range nodes {
		around, same := s.around[n.Name], 0
		for same < min(len(common), len(around)) && common[same] == around[same] {
			same++
		}
		common = common[:same]
	}
	for _, n := range nodes {
		for _, g := range s.around[n.Name][len(common):] {
			s.cut[g.Kind] = true
		}
	}
	home := common[len(common)-1]
	s.whole[home] = append(s.whole[home], v1alpha1.Group{Name: d.Name, Kind: d.Kind, Status: d.Status, Child: nodes})
}

// split puts nodes into the parts of domains: inside domains, or inside all other groups.
func (s *splitter) split(in v1alpha1.Group, domains bool) []v1alpha1.Group {
	var out, parts []v1alpha1.Group
	at := map[string]int{}
	for _, g := range in.Child {
		p, known := s.part[g.Name]
		switch {
		case g.Kind != kindNode:
			g.Child = s.split(g, domains)
			out = append(out, g)
		case !known || domains != (in.Kind == s.Kind):
			out = append(out, g)
		default:
			i, had := at[p.Name]
			if !had {
				i, at[p.Name] = len(parts), len(parts)
				parts = append(parts, p)
			}
			parts[i].Child = append(parts[i].Child, g)
		}
	}
	return append(out, parts...)
}

// gather puts each domain that crosses groups into the lowest group that holds it.
func (s *splitter) gather(in *v1alpha1.Group) []v1alpha1.Group {
	var out []v1alpha1.Group
	for i, g := range in.Child {
		switch {
		case g.Kind == kindNode && s.domain[g.Name] != nil:
			continue
		case g.Kind != kindNode && g.Kind != s.Kind:
			if g.Child = s.gather(&in.Child[i]); len(g.Child) == 0 {
				continue
			}
		}
		out = append(out, g)
	}
	return append(out, s.whole[in]...)
}
