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

	file  string
	lines map[string]int
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
		d.addSyntax(err.Error())
		return d
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		d.add(more.Line, "", "only one YAML document is allowed")
	}
	if len(node.Content) == 0 || node.Content[0].ShortTag() == "!!null" {
		return d
	}
	d.Root = node.Content[0]
	if d.check(d.Root, reflect.TypeOf(into).Elem(), "", "", d.Root.Line); d.Errors != nil {
		return d
	}
	if err := d.Root.Decode(into); err != nil {
		d.addSyntax(err.Error())
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

// addSyntax adds an error of the parser: "yaml: line 2: did not find expected ',' or ']'".
func (d *Document) addSyntax(text string) {
	line := 0
	text = strings.TrimPrefix(text, "yaml: ")
	if _, err := fmt.Sscanf(text, "line %d:", &line); err == nil {
		_, text, _ = strings.Cut(text, ": ")
	}
	d.add(line, "", "invalid YAML: %s", text)
}

const unsupported = "YAML anchors, aliases, merges and tags are not supported"

// check notes the line of a node and of all below it, and rejects what the type does not take: package yaml converts
// some values without an error, and names no path in its own errors.
func (d *Document) check(n *yaml.Node, t reflect.Type, tag reflect.StructTag, path string, line int) {
	d.lines[path] = line
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0:
		d.add(line, path, unsupported)
	case n.ShortTag() == "!!null":
		d.add(line, path, "has no value: remove the key or set a value")
	case n.Kind == yaml.MappingNode && (t.Kind() == reflect.Struct || t.Kind() == reflect.Map):
		d.section(n, t, tag, path)
	case n.Kind == yaml.SequenceNode && t.Kind() == reflect.Slice:
		for i, item := range n.Content {
			d.check(item, t.Elem(), tag, fmt.Sprintf("%s[%d]", path, i), item.Line)
		}
	default:
		if want := wanted(n, t, tag); want != "" {
			d.add(n.Line, path, "invalid value %q: want %s", n.Value, want)
		}
	}
}

// section checks the keys of a section, and what is below them.
func (d *Document) section(n *yaml.Node, t reflect.Type, tag reflect.StructTag, path string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		f, known := field(t, key.Value)
		switch {
		case key.Kind != yaml.ScalarNode || key.Anchor != "" || key.ShortTag() == "!!merge":
			d.add(key.Line, strings.TrimSuffix(at, "."), unsupported)
		case d.lines[at] > 0:
			d.add(key.Line, at, "duplicate key; the first is on line %d", d.lines[at])
		case known:
			d.check(value, f.Type, f.Tag, at, key.Line)
		case t.Kind() == reflect.Map:
			d.check(value, t.Elem(), tag, at, key.Line)
		default:
			d.lines[at] = key.Line
			d.add(key.Line, at, "unknown key")
		}
	}
}

// field returns the field of a struct, or of a struct inlined in it, for a key.
func field(t reflect.Type, key string) (found reflect.StructField, ok bool) {
	if t.Kind() != reflect.Struct {
		return found, false
	}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); name == key {
			return f, true
		}
	}
	return found, false
}

// wanted says what a type takes instead of a node, or nothing if it takes the node.
func wanted(n *yaml.Node, t reflect.Type, tag reflect.StructTag) string {
	short := n.ShortTag()
	scalar := n.Kind == yaml.ScalarNode
	switch kind := t.Kind(); {
	case t == reflect.TypeFor[time.Duration]():
		if _, err := time.ParseDuration(n.Value); err != nil || short != "!!str" {
			return "a duration such as 30s"
		}
	case kind == reflect.Int && (short != "!!int" || n.Decode(new(int)) != nil):
		return "a whole number"
	case kind == reflect.Bool && short != "!!bool":
		return "true or false"
	case kind == reflect.Float64 && short != "!!int" && short != "!!float":
		return "a number"
	case kind == reflect.String && !scalar:
		return "a text"
	case t == reflect.TypeFor[string]() && short != "!!str" && tag.Get("scalar") != "any":
		return "a text: put it in quotes"
	case kind == reflect.Slice:
		return "a list"
	case kind == reflect.Struct && scalar && reflect.PointerTo(t).Implements(reflect.TypeFor[yaml.Unmarshaler]()):
		return "" // It has a form of its own.
	case kind == reflect.Struct || kind == reflect.Map:
		return "a section"
	}
	return ""
}
