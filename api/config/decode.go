package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Fault is one thing that is wrong with a configuration.
type Fault struct { //nolint:errname // It is one entry of a list of faults; callers write config.Fault.
	// File is the key of the ConfigMap: cluster-config.
	File string
	// Line is counted from 1 in that key's text; 0 is unknown.
	Line int
	// Path is the place as a person writes it: rdma.resources[0].name. Empty
	// for the file as a whole.
	Path string
	Err  error
}

// Error is "file:line: path: what is wrong".
func (f *Fault) Error() string {
	place := f.File
	if f.Line > 0 {
		place += ":" + strconv.Itoa(f.Line)
	}
	if f.Path != "" {
		place += ": " + f.Path
	}
	return place + ": " + f.Err.Error()
}

func (f *Fault) Unwrap() error { return f.Err }

// document is one file: its YAML tree and what was found wrong with it.
type document struct {
	file   string
	root   *yaml.Node
	faults []error
	// lines are the places of all paths, for faults found later.
	lines map[string]int
}

// parse reads one YAML document. An empty one has no root.
func parse(file string, text []byte) *document {
	d := &document{file: file, lines: map[string]int{}}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var node yaml.Node
	if err := decoder.Decode(&node); err != nil {
		if !errors.Is(err, io.EOF) {
			d.faults = append(d.faults, syntaxFault(file, err))
		}
		return d
	}
	var more yaml.Node
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		d.fault(&more, "", "a second YAML document, or text that is no YAML, follows the first")
	}
	if len(node.Content) == 1 && node.Content[0].ShortTag() != "!!null" {
		d.root = node.Content[0]
	}
	return d
}

// syntaxFault takes the line out of the parser's text: "yaml: line 2: did not
// find expected ',' or ']'".
func syntaxFault(file string, err error) *Fault {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	f := &Fault{File: file}
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		digits, what, _ := strings.Cut(rest, ": ")
		if line, err := strconv.Atoi(digits); err == nil {
			f.Line, text = line, what
		}
	}
	f.Err = errors.New("no YAML: " + text)
	return f
}

func (d *document) fault(n *yaml.Node, at, format string, args ...any) {
	d.faults = append(d.faults, &Fault{File: d.file, Line: n.Line, Path: at, Err: fmt.Errorf(format, args...)})
}

// checker is a type with rules for its text.
type checker interface{ Check() error }

// enum is a type of few words.
type enum interface{ Values() []string }

// check compares a node with the Go type that it is for and reports everything
// that does not fit, each with its line. What passes can be decoded.
func (d *document) check(n *yaml.Node, t reflect.Type, at string) {
	d.lines[at] = n.Line
	switch {
	case fancy(n):
		d.fault(n, at, notRead)
	case n.ShortTag() == "!!null":
		d.fault(n, at, "has no value; leave the key out or give it one")
	case t.Kind() == reflect.Struct:
		d.checkStruct(n, t, at)
	case t.Kind() == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.fault(n, at, "is %s, not a list", kind(n))
			return
		}
		for i, item := range n.Content {
			d.check(item, t.Elem(), fmt.Sprintf("%s[%d]", at, i))
		}
	case t.Kind() == reflect.Map:
		d.checkMap(n, t, at)
	default:
		d.checkScalar(n, t, at)
	}
}

// notRead is about what would let a text mean something else than it shows.
const notRead = "YAML anchors, aliases and tags are not read here"

func fancy(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0
}

func (d *document) checkStruct(n *yaml.Node, t reflect.Type, at string) {
	if n.Kind != yaml.MappingNode {
		d.fault(n, at, "is %s, not a section with keys", kind(n))
		return
	}
	fields := fieldsOf(t)
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := join(at, key.Value)
		if d.twice(key, seen, name) {
			continue
		}
		f, ok := find(fields, key.Value)
		if !ok {
			d.fault(key, name, "unknown key; %s", hint(key.Value, fields))
			continue
		}
		d.check(value, f.typ, name)
		d.checkRange(value, f.limits, name)
	}
	for _, f := range fields {
		if _, ok := seen[f.name]; f.required && !ok {
			d.fault(n, join(at, f.name), "is missing")
		}
	}
}

// twice reports a key that cannot be looked at further.
func (d *document) twice(key *yaml.Node, seen map[string]int, at string) bool {
	if fancy(key) {
		d.fault(key, at, notRead)
		return true
	}
	if line, ok := seen[key.Value]; ok {
		d.fault(key, at, "stands here twice; the first is on line %d", line)
		return true
	}
	seen[key.Value] = key.Line
	return false
}

func (d *document) checkMap(n *yaml.Node, t reflect.Type, at string) {
	if n.Kind != yaml.MappingNode {
		d.fault(n, at, "is %s, not a section with keys", kind(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if name := join(at, key.Value); !d.twice(key, seen, name) {
			d.check(n.Content[i+1], t.Elem(), name)
		}
	}
}

func (d *document) checkScalar(n *yaml.Node, t reflect.Type, at string) {
	if n.Kind != yaml.ScalarNode {
		d.fault(n, at, "is %s, not a single value", kind(n))
		return
	}
	zero := reflect.Zero(t).Interface()
	if words, ok := zero.(enum); ok {
		d.checkWord(n, words.Values(), at)
		return
	}
	if _, ok := zero.(checker); ok {
		// A number is a text here: 1021 is a device ID as 15b3 is.
		v := reflect.New(t).Elem()
		v.SetString(n.Value)
		if c, ok := reflect.TypeAssert[checker](v); ok {
			if err := c.Check(); err != nil {
				d.fault(n, at, "%w", err)
			}
		}
		return
	}
	switch tag := n.ShortTag(); {
	case t.Kind() == reflect.String && tag != "!!str":
		d.fault(n, at, "%s is %s, not a text; put it in quotes", n.Value, kind(n))
	case t.Kind() == reflect.Bool && tag != "!!bool":
		d.fault(n, at, "%q is not true or false", n.Value)
	case t.Kind() == reflect.Int && (tag != "!!int" || n.Decode(new(int)) != nil):
		d.fault(n, at, "%q is not a whole number", n.Value)
	}
}

// checkWord finds out which allowed word was meant.
func (d *document) checkWord(n *yaml.Node, words []string, at string) {
	meant := ""
	for _, word := range words {
		if word == n.Value && n.ShortTag() == "!!str" {
			return
		}
		if near(word, n.Value) {
			meant = fmt.Sprintf("; did you mean %q?", word)
		}
	}
	d.fault(n, at, "%q is not one of %s%s", n.Value, Quoted(words), meant)
}

// checkRange checks a number against its field's "range" tag, such as 1-100.
func (d *document) checkRange(n *yaml.Node, limits, at string) {
	var value int
	if limits == "" || n.Decode(&value) != nil {
		return
	}
	low, high, _ := strings.Cut(limits, "-")
	lowest, errLow := strconv.Atoi(low)
	highest, errHigh := strconv.Atoi(high)
	if errLow == nil && errHigh == nil && (value < lowest || value > highest) {
		d.fault(n, at, "%d is not between %d and %d", value, lowest, highest)
	}
}

// field is one key of a section.
type field struct {
	name     string
	typ      reflect.Type
	limits   string
	required bool
}

// fieldsOf lists the keys of a struct, with those of inlined ones.
func fieldsOf(t reflect.Type) (fields []field) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case name == "-":
		case options == "inline":
			fields = append(fields, fieldsOf(f.Type)...)
		default:
			fields = append(fields, field{
				name: name, typ: f.Type, limits: f.Tag.Get("range"), required: f.Tag.Get("required") == "true",
			})
		}
	}
	return fields
}

func find(fields []field, name string) (field, bool) {
	for _, f := range fields {
		if f.name == name {
			return f, true
		}
	}
	return field{}, false
}

func join(at, key string) string {
	if at == "" || key == "" {
		return at + key
	}
	return at + "." + key
}
