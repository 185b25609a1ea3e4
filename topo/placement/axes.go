package placement

import (
	"slices"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
)

// Axes is one topology as two trees, where NVLink domains cross groups of the fabric
// so that no single tree has both whole.
type Axes struct {
	// Fabric has all groups of the fabric whole, and in them as groups of nodes the
	// parts of domains that they have. NVLink has all domains whole, each in the
	// lowest group of the fabric that has all of it, and in them their parts: of
	// domains that hold a gang the one that has it on fewest leaves comes first. Whole
	// is NVLink without parts: slices go into one domain.
	Fabric, NVLink, Whole []v1alpha1.Group
	// Kind is that of the domains.
	Kind string
	// cut are the kinds of the groups that domains cross.
	cut map[string]bool
}

// KindPart is the kind of the parts of domains. No level has it.
const KindPart = "nvlink-part"

// Crossing are the groups of GET /node_group?axis=nvlink that cross those of GET
// /node_group: they are not among them.
func Crossing(groups, domains []v1alpha1.Group) []v1alpha1.Group {
	known := map[[2]string]bool{}
	var walk func([]v1alpha1.Group)
	walk = func(list []v1alpha1.Group) {
		for i := range list {
			if list[i].Kind != kindNode {
				known[[2]string{list[i].Kind, list[i].Name}] = true
				walk(list[i].Child)
			}
		}
	}
	walk(groups)
	var out []v1alpha1.Group
	for _, d := range domains {
		if d.Kind != kindNode && !known[[2]string{d.Kind, d.Name}] && !slices.ContainsFunc(d.Child, isGroup) {
			out = append(out, d)
		}
	}
	return out
}

func isGroup(g v1alpha1.Group) bool { return !isNode(g) }

// NewAxes makes the trees of the fabric's groups and of the domains that cross them;
// nil without any.
func NewAxes(groups, crossing []v1alpha1.Group) *Axes {
	if len(crossing) == 0 {
		return nil
	}
	s := splitter{domain: map[string]*v1alpha1.Group{}, around: map[string][]*v1alpha1.Group{}}
	for i := range crossing {
		for _, n := range crossing[i].Child {
			s.domain[n.Name] = &crossing[i]
		}
	}
	s.locate(groups, nil)
	a := &Axes{cut: map[string]bool{}}
	s.home = map[*v1alpha1.Group]*v1alpha1.Group{}
	for i := range crossing {
		if d := &crossing[i]; s.settle(d, a.cut) {
			a.Kind = d.Kind
		}
	}
	if a.Kind == "" {
		return nil
	}
	s.kind = a.Kind
	a.Fabric = s.split(groups, nil)
	a.NVLink = s.gather(groups, nil, true)
	a.Whole = s.gather(groups, nil, false)
	return a
}

// Cuts reports whether domains cross groups of a kind.
func (a *Axes) Cuts(kind string) bool { return a.cut[kind] }

// splitter puts the nodes of domains together, or apart.
type splitter struct {
	// domain is by node; around are the groups that hold a node, top first.
	domain map[string]*v1alpha1.Group
	around map[string][]*v1alpha1.Group
	// home is the lowest group that holds all of a domain, nil for none.
	home map[*v1alpha1.Group]*v1alpha1.Group
	// order are the domains that have a home.
	order []*v1alpha1.Group
	kind  string
}

func (s *splitter) locate(list []v1alpha1.Group, around []*v1alpha1.Group) {
	for i := range list {
		g := &list[i]
		if g.Kind != kindNode {
			s.locate(g.Child, append(slices.Clip(around), g))
		} else if s.domain[g.Name] != nil {
			s.around[g.Name] = around
		}
	}
}

// settle finds the home of a domain and the kinds of groups that it crosses. It is
// false if the tree has no node of it.
func (s *splitter) settle(d *v1alpha1.Group, cut map[string]bool) bool {
	var common []*v1alpha1.Group
	found := false
	for _, n := range d.Child {
		around, known := s.around[n.Name]
		switch {
		case !known || s.domain[n.Name] != d:
			continue
		case !found:
			common, found = around, true
		}
		same := 0
		for same < min(len(common), len(around)) && common[same] == around[same] {
			same++
		}
		common = common[:same]
	}
	if !found {
		return false
	}
	for _, n := range d.Child {
		if around := s.around[n.Name]; s.domain[n.Name] == d {
			for _, g := range around[min(len(common), len(around)):] {
				cut[g.Kind] = true
			}
		}
	}
	s.home[d] = nil
	if len(common) > 0 {
		s.home[d] = common[len(common)-1]
	}
	s.order = append(s.order, d)
	return true
}

// split puts the nodes that a group has of a domain into a part.
func (s *splitter) split(list []v1alpha1.Group, in *v1alpha1.Group) []v1alpha1.Group {
	var out, parts []v1alpha1.Group
	at := map[*v1alpha1.Group]int{}
	for i := range list {
		g := list[i]
		d := s.domain[g.Name]
		switch {
		case g.Kind != kindNode:
			g.Child = s.split(g.Child, &list[i])
			out = append(out, g)
		case d == nil:
			out = append(out, g)
		default:
			if _, had := at[d]; !had {
				at[d] = len(parts)
				parts = append(parts, part(d, in))
			}
			parts[at[d]].Child = append(parts[at[d]].Child, g)
		}
	}
	return append(out, parts...)
}

// part is the part of a domain that a group has, nil for none, without its nodes.
func part(d, in *v1alpha1.Group) v1alpha1.Group {
	p := v1alpha1.Group{Name: d.Name, Kind: KindPart, Status: d.Status}
	if in != nil {
		p.Name += " on " + in.Kind + " " + in.Name
	}
	return p
}

// gather puts each domain that crosses groups into its home, whole, with its parts or
// without. Other domains get a part with all of their nodes: all parts are alike.
func (s *splitter) gather(list []v1alpha1.Group, in *v1alpha1.Group, parts bool) []v1alpha1.Group {
	var out []v1alpha1.Group
	for i := range list {
		g := list[i]
		switch {
		case g.Kind == kindNode && s.domain[g.Name] != nil:
			continue
		case g.Kind == kindNode:
		case g.Kind == s.kind:
			if parts {
				whole := part(&list[i], nil)
				whole.Child = g.Child
				g.Child = []v1alpha1.Group{whole}
			}
		default:
			if g.Child = s.gather(g.Child, &list[i], parts); len(g.Child) == 0 {
				continue
			}
		}
		out = append(out, g)
	}
	for _, d := range s.order {
		if s.home[d] != in {
			continue
		}
		whole := v1alpha1.Group{Name: d.Name, Kind: d.Kind, Status: d.Status}
		if parts {
			whole.Child = s.parts(d)
		} else {
			whole.Child = s.nodes(d)
		}
		out = append(out, whole)
	}
	return out
}

// nodes are those of a domain that are in the tree and in no other domain.
func (s *splitter) nodes(d *v1alpha1.Group) []v1alpha1.Group {
	return slices.DeleteFunc(slices.Clone(d.Child), func(n v1alpha1.Group) bool {
		_, known := s.around[n.Name]
		return !known || s.domain[n.Name] != d
	})
}

// parts are the nodes of a domain by the group of the fabric that they stand in.
func (s *splitter) parts(d *v1alpha1.Group) []v1alpha1.Group {
	var out []v1alpha1.Group
	at := map[*v1alpha1.Group]int{}
	for _, n := range s.nodes(d) {
		var in *v1alpha1.Group
		if around := s.around[n.Name]; len(around) > 0 {
			in = around[len(around)-1]
		}
		i, had := at[in]
		if !had {
			i = len(out)
			at[in] = i
			out = append(out, part(d, in))
		}
		out[i].Child = append(out[i].Child, n)
	}
	return out
}
