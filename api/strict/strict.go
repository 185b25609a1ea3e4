// Package strict reads YAML that people write. It accepts one document without unknown keys, duplicate keys,
// anchors, aliases, tags and keys without a value, and gives every error its file, line and path.
//
// It never knows what a key means: callers check values, and get the line of each from the document.
package strict

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Error is one error in a file.
type Error struct {
	// File is the name of the file, or the key of a ConfigMap.
	File string
	// Line is counted from 1; 0 is unknown.
	Line int
	// Path is as a person writes it: rdma.resources[0].name. It is empty for the file as a whole.
	Path string
	Err  error
}

// Error returns "file:line: path: what is wrong".
func (e *Error) Error() string {
	place := e.File
	if e.Line > 0 {
		place += ":" + strconv.Itoa(e.Line)
	}
	if e.Path != "" {
		place += ": " + e.Path
	}
	return place + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Document is a file that was read, with the place of everything in it.
type Document struct {
	// Root is nil for an empty document.
	Root *yaml.Node
	// Errors are everything that is wrong with it, each an [Error].
	Errors []error

	file   string
	places []place
	lines  map[string]int
}

// place is a key, or an entry of a list, and its value, which is empty unless it is a scalar.
type place struct {
	path, key, tag, value string
	line, valueLine       int
}

// Read decodes a document into a value. What the document does not have keeps its value. A field of type string takes
// a number or a bool only with the tag `scalar:"any"`; named types of string check their values themselves.
func Read(file string, text []byte, into any) *Document {
	d := &Document{file: file, lines: map[string]int{}}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var node, more yaml.Node
	if err := decoder.Decode(&node); errors.Is(err, io.EOF) {
		return d
	} else if err != nil {
		d.addSyntax(err)
		return d
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		d.add(more.Line, "", "only one YAML document is allowed")
	}
	if len(node.Content) == 0 || node.Content[0].ShortTag() == "!!null" {
		return d
	}
	d.Root = node.Content[0]
	if d.index(d.Root, d.Root.Line, "", ""); d.Errors != nil {
		return d
	}
	d.check(d.Root, reflect.TypeOf(into).Elem(), "", "")
	decoder = yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	var wrong *yaml.TypeError
	if err := decoder.Decode(into); errors.As(err, &wrong) {
		for _, text := range wrong.Errors {
			d.addType(text)
		}
	} else if err != nil {
		d.addSyntax(err)
	}
	return d
}

// Line returns the line of a path, or of the nearest section around it. It is 0 in an empty document.
func (d *Document) Line(path string) int {
	for path != "" && d.lines[path] == 0 {
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return d.lines[path]
}

// Has reports whether the document has a path.
func (d *Document) Has(path string) bool { return d.lines[path] > 0 }

// Failed reports whether a path has an error.
func (d *Document) Failed(path string) bool {
	return slices.ContainsFunc(d.Errors, func(err error) bool {
		var e *Error
		return errors.As(err, &e) && e.Path == path
	})
}

// Add adds an error of a path.
func (d *Document) Add(path, format string, args ...any) { d.add(d.Line(path), path, format, args...) }

func (d *Document) add(line int, path, format string, args ...any) {
	d.Errors = append(d.Errors, &Error{File: d.file, Line: line, Path: path, Err: fmt.Errorf(format, args...)})
}

// index records the place of a node and of all below it.
func (d *Document) index(n *yaml.Node, line int, path, key string) {
	d.lines[path] = line
	d.places = append(d.places, place{
		path: path, key: key, tag: n.ShortTag(), value: n.Value, line: line, valueLine: n.Line,
	})
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0:
		d.add(line, path, "YAML anchors, aliases, merges and tags are not supported")
	case n.ShortTag() == "!!null":
		d.add(line, path, "has no value: remove the key or set a value")
	case n.Kind == yaml.SequenceNode:
		for i, item := range n.Content {
			d.index(item, item.Line, fmt.Sprintf("%s[%d]", path, i), "")
		}
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind != yaml.ScalarNode || key.Anchor != "" || key.ShortTag() == "!!merge" {
				d.add(key.Line, below(path, key), "YAML anchors, aliases, merges and tags are not supported")
				continue
			}
			d.index(n.Content[i+1], key.Line, below(path, key), key.Value)
		}
	}
}

// below returns the path of a key; a list or a section as a key has the path of its section.
func below(path string, key *yaml.Node) string {
	if key.Value == "" {
		return path
	}
	return strings.TrimPrefix(path+"."+key.Value, ".")
}

// check rejects the values that package yaml converts without an error.
func (d *Document) check(n *yaml.Node, t reflect.Type, tag reflect.StructTag, path string) {
	switch n.Kind { //nolint:exhaustive // A document has no aliases here, and its other nodes are of these kinds.
	case yaml.SequenceNode:
		for i, item := range n.Content {
			if t.Kind() == reflect.Slice {
				d.check(item, t.Elem(), tag, fmt.Sprintf("%s[%d]", path, i))
			}
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			switch f, ok := field(t, key.Value); {
			case ok:
				d.check(value, f.Type, f.Tag, below(path, key))
			case t.Kind() == reflect.Map:
				d.check(value, t.Elem(), tag, below(path, key))
			}
		}
	case yaml.ScalarNode:
		if want := wanted(n, t, tag); want != "" {
			d.add(n.Line, path, "invalid value %q: want %s", n.Value, want)
		}
	}
}

// field returns the field of a struct, or of a struct inlined in it, for a key.
func field(t reflect.Type, key string) (reflect.StructField, bool) {
	if t.Kind() != reflect.Struct {
		return reflect.StructField{}, false
	}
	fields := reflect.VisibleFields(t)
	i := slices.IndexFunc(fields, func(f reflect.StructField) bool {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		return name == key
	})
	if i < 0 {
		return reflect.StructField{}, false
	}
	return fields[i], true
}

// wanted says what a type takes instead of a scalar, or nothing if it takes the scalar.
func wanted(n *yaml.Node, t reflect.Type, tag reflect.StructTag) string {
	switch short := n.ShortTag(); {
	case t == reflect.TypeFor[time.Duration]():
		if _, err := time.ParseDuration(n.Value); err != nil || short != "!!str" {
			return "a duration such as 30s"
		}
	case t.Kind() == reflect.Int && short != "!!int":
		return "a whole number"
	case t.Kind() == reflect.Bool && short != "!!bool":
		return "true or false"
	case t.Kind() == reflect.Float64 && short != "!!int" && short != "!!float":
		return "a number"
	case t == reflect.TypeFor[string]() && short != "!!str" && tag.Get("scalar") != "any":
		return "a text: put it in quotes"
	}
	return ""
}

// The errors of package yaml, after "line 2: ".
var (
	lineOf    = regexp.MustCompile(`^(?:yaml: )?line (\d+): `)
	unknown   = regexp.MustCompile(`^field (.*) not found in type `)
	duplicate = regexp.MustCompile(`^mapping key "(.*)" already defined at line (\d+)$`)
	wrongType = regexp.MustCompile("^cannot unmarshal (!!\\w+)(?: `(.*?)(?:\\.\\.\\.)?`)? into ")
)

// addSyntax adds an error of the parser: "yaml: line 2: did not find expected ',' or ']'".
func (d *Document) addSyntax(err error) {
	line, text := cutLine(err.Error())
	d.add(line, "", "invalid YAML: %s", text)
}

// addType adds an error of the decoder, with the path that it leaves out.
func (d *Document) addType(text string) {
	line, text := cutLine(text)
	path := func(meant func(*place) bool) (path string) {
		for i := range d.places {
			if meant(&d.places[i]) {
				path = d.places[i].path
			}
		}
		return path
	}
	if m := unknown.FindStringSubmatch(text); m != nil {
		d.add(line, path(func(p *place) bool { return p.line == line && p.key == m[1] }), "unknown key")
		return
	}
	if m := duplicate.FindStringSubmatch(text); m != nil {
		d.add(line, path(func(p *place) bool { return p.line == line && p.key == m[1] }),
			"duplicate key; the first is on line %s", m[2])
		return
	}
	at := ""
	if m := wrongType.FindStringSubmatch(text); m != nil {
		at = path(func(p *place) bool {
			return p.valueLine == line && p.tag == m[1] && strings.HasPrefix(p.value, m[2])
		})
	}
	if at == "" || !d.Failed(at) {
		d.add(line, at, "%s", text)
	}
}

func cutLine(text string) (line int, rest string) {
	if m := lineOf.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	return line, strings.TrimPrefix(text, "yaml: ")
}
