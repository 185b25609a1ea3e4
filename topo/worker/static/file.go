package static

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/heddle-dev/heddle/api/topology/v1alpha1"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/topo/worker"
)

// MaxFile is the largest file that is read, in bytes: what a ConfigMap holds.
const MaxFile = 1 << 20

// Version is the value of the key version.
const Version = "v1"

// Parse reads a file. The error has every fault in it, each with file, line
// and place.
func Parse(file string, text []byte) (map[string]worker.Place, error) {
	p := &parser{file: file, parents: map[string]parent{}, nodes: map[string]worker.Place{}}
	if len(text) > MaxFile {
		return nil, fmt.Errorf("%s: more than %d bytes", file, MaxFile)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, more yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: is empty", file)
		}
		return nil, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: something follows the first YAML document", file)
	}
	p.root(document.Content[0])
	if p.faults != nil {
		return nil, errors.Join(p.faults...)
	}
	return p.nodes, nil
}

// maxFaults bounds the faults reported of one file.
const maxFaults = 20

type parser struct {
	file   string
	faults []error
	// parents are the groups that stand in another, with the line that has it.
	parents map[string]parent
	nodes   map[string]worker.Place
}

type parent struct {
	name string
	line int
}

func (p *parser) fault(n *yaml.Node, at, format string, args ...any) {
	if len(p.faults) < maxFaults {
		what := fmt.Sprintf(format, args...)
		p.faults = append(p.faults, fmt.Errorf("%s:%d: %s: %s", p.file, n.Line, at, what))
	}
}

func (p *parser) root(n *yaml.Node) {
	var groups, nodes *yaml.Node
	version := ""
	p.section(n, "file", func(key, value *yaml.Node) bool {
		switch key.Value {
		case "version":
			version = p.text(value, "version")
		case "groups":
			groups = value
		case "nodes":
			nodes = value
		default:
			return false
		}
		return true
	})
	if version != Version {
		p.fault(n, "version", "%.20q is not %s", version, Version)
	}
	if groups != nil {
		p.groups(groups)
	}
	if nodes == nil {
		p.fault(n, "nodes", "is missing")
		return
	}
	lines := map[string]*yaml.Node{}
	p.section(nodes, "nodes", func(key, value *yaml.Node) bool {
		lines[key.Value] = key
		p.nodes[key.Value] = p.node(value, "nodes."+key.Value)
		return true
	})
	if p.circles(); p.faults != nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(p.nodes)) {
		place := p.nodes[name]
		p.derive(lines[name], &place)
		p.nodes[name] = place
	}
}

// section calls each for every key of a mapping; each reports whether it knows
// the key.
func (p *parser) section(n *yaml.Node, at string, each func(key, value *yaml.Node) bool) {
	if n.Kind != yaml.MappingNode {
		p.fault(n, at, "is no section with keys")
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		place := at + "." + key.Value
		line, twice := seen[key.Value]
		seen[key.Value] = key.Line
		switch {
		case key.Kind != yaml.ScalarNode || fancy(key) || fancy(value):
			p.fault(key, at, "YAML anchors, aliases and tags are not read here")
		case twice:
			p.fault(key, place, "stands here twice; the first is on line %d", line)
		case !each(key, value):
			p.fault(key, place, "unknown key")
		}
	}
}

func fancy(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0
}

func (p *parser) text(n *yaml.Node, at string) string {
	if n.Kind != yaml.ScalarNode || fancy(n) || n.ShortTag() == "!!null" {
		p.fault(n, at, "is no text")
		return ""
	}
	return n.Value
}

// group reads a group's name.
func (p *parser) group(n *yaml.Node, at string) string {
	name := p.text(n, at)
	if name == "" {
		return ""
	}
	if err := wellknown.CheckValue(name); err != nil {
		p.fault(n, at, "%v", err)
		return ""
	}
	return name
}

func (p *parser) groups(n *yaml.Node) {
	p.section(n, "groups", func(key, value *yaml.Node) bool {
		at := "groups." + key.Value
		if upper := p.group(value, at); upper != "" && p.group(key, at) != "" {
			p.under(value, at, key.Value, upper)
		}
		return true
	})
}

// under notes that one group stands in another, and rejects a second one.
func (p *parser) under(n *yaml.Node, at, name, upper string) {
	known, ok := p.parents[name]
	if ok && known.name != upper {
		p.fault(n, at, "%s is in %s here and in %s on line %d", name, upper, known.name, known.line)
		return
	}
	if !ok {
		p.parents[name] = parent{upper, n.Line}
	}
}

func (p *parser) node(n *yaml.Node, at string) (out worker.Place) {
	var path, group *yaml.Node
	p.section(n, at, func(key, value *yaml.Node) bool {
		switch key.Value {
		case "path":
			path = value
			out.Path = p.path(value, at+".path")
		case "group":
			group = value
			if name := p.group(value, at+".group"); name != "" {
				out.Path = []string{name}
			}
		case "rails":
			out.Rails = p.rails(value, at+".rails")
		default:
			return false
		}
		return true
	})
	if path != nil && group != nil {
		p.fault(group, at+".group", "stands beside a path; give one of them")
	}
	return out
}

func (p *parser) path(n *yaml.Node, at string) (path []string) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 || len(n.Content) > worker.MaxPath {
		p.fault(n, at, "is no list of 1 to %d groups", worker.MaxPath)
		return nil
	}
	for i, item := range n.Content {
		place := at + "[" + strconv.Itoa(i) + "]"
		name := p.group(item, place)
		switch first := slices.Index(path, name); {
		case name == "":
			return nil
		case first >= 0:
			p.fault(item, place, "%s stands in itself: it is entry %d too", name, first)
			return nil
		case i > 0:
			p.under(item, place, name, path[i-1])
		}
		path = append(path, name)
	}
	return path
}

func (p *parser) rails(n *yaml.Node, at string) (rails []v1alpha1.Rail) {
	p.section(n, at, func(key, value *yaml.Node) bool {
		place := at + "." + key.Value
		r, ok := number(key.Value)
		if !ok {
			p.fault(key, place, "is neither a rail (0 to %d) nor rail/plane", worker.MaxRails-1)
			return true
		}
		r.Switch = &v1alpha1.Switch{}
		if value.Kind == yaml.MappingNode {
			p.section(value, place, func(key, value *yaml.Node) bool { return p.rail(&r, key, value, place) })
		} else {
			r.Switch.ID = worker.Text(p.text(value, place), worker.MaxName)
		}
		if r.Switch.ID == "" {
			p.fault(value, place, "names no switch")
		}
		rails = append(rails, r)
		return true
	})
	slices.SortFunc(rails, func(a, b v1alpha1.Rail) int {
		return cmp.Or(cmp.Compare(a.Rail, b.Rail), cmp.Compare(a.Plane, b.Plane))
	})
	return rails
}

func (p *parser) rail(r *v1alpha1.Rail, key, value *yaml.Node, at string) bool {
	at += "." + key.Value
	switch key.Value {
	case "switch":
		r.Switch.ID = worker.Text(p.text(value, at), worker.MaxName)
	case "name":
		r.Switch.Name = worker.Text(p.text(value, at), worker.MaxSwitchName)
	case "port":
		r.SwitchPort = worker.Text(p.text(value, at), worker.MaxName)
	default:
		return false
	}
	return true
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

// maxCircle bounds a way up that is followed; no node is in that many groups.
const maxCircle = 64

// circles rejects groups that stand in themselves, each circle once, beginning
// with the one that is written first.
func (p *parser) circles() {
	names := slices.SortedFunc(maps.Keys(p.parents), func(a, b string) int {
		return cmp.Or(cmp.Compare(p.parents[a].line, p.parents[b].line), strings.Compare(a, b))
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
			p.fault(&yaml.Node{Line: p.parents[name].line}, "groups", "%s: a circle", strings.Join(way, " is in "))
		}
	}
}

// derive puts the groups above a path's first on top of it.
func (p *parser) derive(key *yaml.Node, place *worker.Place) {
	if len(place.Path) == 0 {
		return
	}
	for upper := p.parents[place.Path[0]].name; upper != ""; upper = p.parents[upper].name {
		if len(place.Path) == worker.MaxPath {
			p.fault(key, "nodes."+key.Value, "is in more than %d groups", worker.MaxPath)
			return
		}
		place.Path = slices.Insert(place.Path, 0, upper)
	}
}
