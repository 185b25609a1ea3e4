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
	f := p.fields(n, "file", "version", "groups", "nodes")
	if version := p.text(f["version"], "version"); version != Version {
		p.fault(n, "version", "%.20q is not %s", version, Version)
	}
	for _, e := range p.entries(f["groups"], "groups") {
		if upper := p.group(e.value, e.at); upper != "" && p.group(e.key, e.at) != "" {
			p.under(e.value, e.at, e.key.Value, upper)
		}
	}
	if f["nodes"] == nil {
		p.fault(n, "nodes", "is missing")
	}
	nodes := p.entries(f["nodes"], "nodes")
	for _, e := range nodes {
		p.nodes[e.key.Value] = p.node(e.value, e.at)
	}
	if p.circles(); p.faults != nil {
		return
	}
	for _, e := range nodes {
		place := p.nodes[e.key.Value]
		p.derive(e, &place)
		p.nodes[e.key.Value] = place
	}
}

// entry is a key of a section, and its place in the file.
type entry struct {
	key, value *yaml.Node
	at         string
}

// entries returns the entries of a section, each key once; nil for any other node.
func (p *parser) entries(n *yaml.Node, at string) (all []entry) {
	if n == nil {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		p.fault(n, at, "is not a mapping")
		return nil
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		e := entry{n.Content[i], n.Content[i+1], at + "." + n.Content[i].Value}
		line, twice := seen[e.key.Value]
		seen[e.key.Value] = e.key.Line
		switch {
		case e.key.Kind != yaml.ScalarNode || fancy(e.key) || fancy(e.value):
			p.fault(e.key, at, "YAML anchors, aliases and tags are not read here")
		case twice:
			p.fault(e.key, e.at, "duplicate key, first on line %d", line)
		default:
			all = append(all, e)
		}
	}
	return all
}

// fields are the values of a section that has these keys only.
func (p *parser) fields(n *yaml.Node, at string, known ...string) map[string]*yaml.Node {
	found := map[string]*yaml.Node{}
	for _, e := range p.entries(n, at) {
		if !slices.Contains(known, e.key.Value) {
			p.fault(e.key, e.at, "unknown key")
		}
		found[e.key.Value] = e.value
	}
	return found
}

func fancy(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0
}

// text is empty for no value.
func (p *parser) text(n *yaml.Node, at string) string {
	if n == nil {
		return ""
	}
	if n.Kind != yaml.ScalarNode || fancy(n) || n.ShortTag() == "!!null" {
		p.fault(n, at, "is not a string")
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

// under notes that one group stands in another, and rejects a second one.
func (p *parser) under(n *yaml.Node, at, name, upper string) {
	known, ok := p.parents[name]
	if !ok {
		p.parents[name] = parent{upper, n.Line}
	} else if known.name != upper {
		p.fault(n, at, "%s is in %s here and in %s on line %d", name, upper, known.name, known.line)
	}
}

func (p *parser) node(n *yaml.Node, at string) (out worker.Place) {
	f := p.fields(n, at, "path", "group", "rails")
	out.Rails = p.rails(f["rails"], at+".rails")
	if f["path"] != nil {
		out.Path = p.path(f["path"], at+".path")
	}
	if group := p.group(f["group"], at+".group"); group != "" && f["path"] != nil {
		p.fault(f["group"], at+".group", "stands beside a path; give one of them")
	} else if group != "" {
		out.Path = []string{group}
	}
	return out
}

func (p *parser) path(n *yaml.Node, at string) (path []string) {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 || len(n.Content) > worker.MaxPath {
		p.fault(n, at, "is not a list of 1 to %d groups", worker.MaxPath)
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
	for _, e := range p.entries(n, at) {
		r, ok := number(e.key.Value)
		if !ok {
			p.fault(e.key, e.at, "is neither a rail (0 to %d) nor rail/plane", worker.MaxRails-1)
			continue
		}
		f := map[string]*yaml.Node{"switch": e.value}
		if e.value.Kind == yaml.MappingNode {
			f = p.fields(e.value, e.at, "switch", "name", "port")
		}
		text := func(key string, limit int) string { return worker.Text(p.text(f[key], e.at+"."+key), limit) }
		r.Switch = &v1alpha1.Switch{ID: text("switch", worker.MaxName), Name: text("name", worker.MaxSwitchName)}
		if r.SwitchPort = text("port", worker.MaxName); r.Switch.ID == "" {
			p.fault(e.value, e.at, "names no switch")
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
func (p *parser) derive(e entry, place *worker.Place) {
	if len(place.Path) == 0 {
		return
	}
	for upper := p.parents[place.Path[0]].name; upper != ""; upper = p.parents[upper].name {
		if len(place.Path) == worker.MaxPath {
			p.fault(e.key, e.at, "is in more than %d groups", worker.MaxPath)
			return
		}
		place.Path = slices.Insert(place.Path, 0, upper)
	}
}
