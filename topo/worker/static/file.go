package static

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/heddle-dev/heddle/api/strict"
	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/worker"
)

// MaxFile is the largest file that is read, in bytes: what a ConfigMap holds.
const MaxFile = 1 << 20

// Version is the value of the key version.
const Version = "v1"

// document is the content of a file.
type document struct {
	Version string `yaml:"version"`
	// Groups are the parents of groups.
	Groups map[string]string `yaml:"groups" scalar:"any"`
	Nodes  map[string]node   `yaml:"nodes"`
}

// node has the group of a node, or all its groups from the top, and the links of its rails.
type node struct {
	Group string          `yaml:"group" scalar:"any"`
	Path  []string        `yaml:"path" scalar:"any"`
	Rails map[string]link `yaml:"rails"`
}

// link is the far end of a rail. In YAML it is the switch alone, or a section.
type link struct {
	Switch string `yaml:"switch" scalar:"any"`
	Name   string `yaml:"name" scalar:"any"`
	Port   string `yaml:"port" scalar:"any"`
}

// UnmarshalYAML decodes both forms.
func (l *link) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		return n.Decode(&l.Switch)
	}
	type section link // Without this method.
	return n.Decode((*section)(l))
}

// Parse reads a file. The error has everything that is wrong, each a [strict.Error]. What is wrong with
// one node takes no other away; what is wrong with the whole file takes all.
func Parse(file string, text []byte) (map[string]worker.Place, error) {
	if len(text) > MaxFile {
		return nil, fmt.Errorf("%s: more than %d bytes", file, MaxFile)
	}
	var content document
	p := &parser{Document: strict.Read(file, text, &content), parents: map[string]parent{}}
	var nodes map[string]worker.Place
	if p.Errors == nil {
		nodes = p.read(&content)
	}
	return nodes, errors.Join(p.Errors...)
}

type parser struct {
	*strict.Document
	// parents are the groups that belong to another, with the path that has it.
	parents map[string]parent
}

type parent struct{ name, at string }

func (p *parser) read(content *document) map[string]worker.Place {
	if content.Version != Version {
		p.Add("version", "unsupported version %.20q: supported is %s", content.Version, Version)
	}
	if !p.Has("nodes") {
		p.Add("nodes", "is missing")
	}
	for _, name := range inOrder(p, "groups", content.Groups) {
		at := "groups." + name
		if p.group(at, name) && p.group(at, content.Groups[name]) {
			p.under(at, name, content.Groups[name])
		}
	}
	whole, nodes := len(p.Errors), map[string]worker.Place{}
	names := inOrder(p, "nodes", content.Nodes)
	for _, name := range names {
		before := len(p.Errors)
		if place := p.node("nodes."+name, content.Nodes[name]); len(p.Errors) == before {
			nodes[name] = place
		}
	}
	before := len(p.Errors)
	if p.circles(); whole > 0 || len(p.Errors) > before {
		return nil
	}
	for _, name := range names {
		place, ok := nodes[name]
		before := len(p.Errors)
		if p.derive("nodes."+name, &place); !ok || len(p.Errors) > before {
			delete(nodes, name)
			continue
		}
		nodes[name] = place
	}
	return nodes
}

// inOrder returns the keys of a section in the order of the file.
func inOrder[V any](p *parser, section string, values map[string]V) []string {
	return slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		return cmp.Or(cmp.Compare(p.Line(section+"."+a), p.Line(section+"."+b)), cmp.Compare(a, b))
	})
}

// group checks the name of a group.
func (p *parser) group(at, name string) bool {
	err := wellknown.CheckValue(name)
	if name == "" {
		err = errors.New("empty name")
	}
	if err != nil {
		p.Add(at, "%w", err)
	}
	return err == nil
}

// under records that one group belongs to another, and rejects a second one.
func (p *parser) under(at, name, upper string) {
	known, ok := p.parents[name]
	if !ok {
		p.parents[name] = parent{upper, at}
	} else if known.name != upper {
		p.Add(at, "%s is in %s here and in %s on line %d", name, upper, known.name, p.Line(known.at))
	}
}

func (p *parser) node(at string, n node) (out worker.Place) {
	out.Rails = p.rails(at+".rails", n.Rails)
	hasPath := p.Has(at + ".path")
	if hasPath {
		out.Path = p.path(at+".path", n.Path)
	}
	switch {
	case n.Group != "" && hasPath:
		p.Add(at+".group", "set either group or path")
	case n.Group != "" && p.group(at+".group", n.Group):
		out.Path = []string{n.Group}
	}
	return out
}

func (p *parser) path(at string, names []string) []string {
	if len(names) == 0 || len(names) > worker.MaxPath {
		p.Add(at, "%d groups: want 1 to %d", len(names), worker.MaxPath)
		return nil
	}
	for i, name := range names {
		place := fmt.Sprintf("%s[%d]", at, i)
		if first := slices.Index(names, name); first < i {
			p.Add(place, "%s is in itself: it is entry %d too", name, first)
			return nil
		}
		if !p.group(place, name) {
			return nil
		}
		if i > 0 {
			p.under(place, name, names[i-1])
		}
	}
	return names
}

func (p *parser) rails(at string, links map[string]link) (rails []v1alpha1.Rail) {
	for _, key := range inOrder(p, at, links) {
		place := at + "." + key
		r, ok := number(key)
		if !ok {
			p.Add(place, "invalid rail: want 0 to %d, or rail/plane", worker.MaxRails-1)
			continue
		}
		l := links[key]
		r.Switch = &v1alpha1.Switch{
			ID: worker.Text(l.Switch, worker.MaxName), Name: worker.Text(l.Name, worker.MaxSwitchName),
		}
		if r.SwitchPort = worker.Text(l.Port, worker.MaxName); r.Switch.ID == "" {
			p.Add(place, "switch is missing")
		}
		rails = append(rails, r)
	}
	slices.SortFunc(rails, func(a, b v1alpha1.Rail) int {
		return cmp.Or(cmp.Compare(a.Rail, b.Rail), cmp.Compare(a.Plane, b.Plane))
	})
	return rails
}

// number reads "3" or "3/1".
func number(s string) (r v1alpha1.Rail, ok bool) {
	rail, plane, two := strings.Cut(s, "/")
	if !two {
		plane = "0"
	}
	n, err := strconv.ParseInt(rail, 10, 32)
	m, errPlane := strconv.ParseInt(plane, 10, 32)
	ok = err == nil && errPlane == nil && n >= 0 && n < worker.MaxRails && m >= 0 && m < worker.MaxPlanes &&
		strconv.FormatInt(n, 10) == rail
	return v1alpha1.Rail{Rail: int32(n), Plane: int32(m)}, ok
}

// maxCircle bounds the search; no node is in that many groups.
const maxCircle = 64

// circles rejects groups that are in themselves, each circle once, with the group that is first in the file.
func (p *parser) circles() {
	names := slices.SortedFunc(maps.Keys(p.parents), func(a, b string) int {
		return cmp.Or(cmp.Compare(p.Line(p.parents[a].at), p.Line(p.parents[b].at)), strings.Compare(a, b))
	})
	reported := map[string]bool{}
	for _, name := range names {
		way := []string{name}
		for at := name; !reported[at] && len(way) <= maxCircle && p.parents[at].name != ""; {
			at = p.parents[at].name
			if way = append(way, at); at != name {
				continue
			}
			for _, group := range way {
				reported[group] = true
			}
			p.Add(p.parents[name].at, "circle of groups: %s", strings.Join(way, " is in "))
		}
	}
}

// derive puts the groups above the first of a path in front of it.
func (p *parser) derive(at string, place *worker.Place) {
	if len(place.Path) == 0 {
		return
	}
	for upper := p.parents[place.Path[0]].name; upper != ""; upper = p.parents[upper].name {
		if len(place.Path) == worker.MaxPath {
			p.Add(at, "is in more than %d groups", worker.MaxPath)
			return
		}
		place.Path = slices.Insert(place.Path, 0, upper)
	}
}
