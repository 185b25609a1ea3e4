package config

import (
	"bytes"
	"cmp"
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

// parse reads one YAML document and compares it with the Go type that it is for.
// An empty one has no root. What has no faults can be decoded.
func parse(file string, text []byte, t reflect.Type) *document {
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
		d.check(d.root, t, "", "")
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
	f.Err = errors.New("invalid YAML: " + text)
	return f
}

func (d *document) fault(n *yaml.Node, at, format string, args ...any) {
	d.faults = append(d.faults, &Fault{File: d.file, Line: n.Line, Path: at, Err: fmt.Errorf(format, args...)})
}

// check compares a node with the type and the tag of the field that it is for,
// and reports everything that does not fit, each with its line.
func (d *document) check(n *yaml.Node, t reflect.Type, tag reflect.StructTag, at string) {
	d.lines[at] = n.Line
	switch {
	case fancy(n):
		d.fault(n, at, notRead)
	case n.ShortTag() == "!!null":
		d.fault(n, at, "has no value; leave the key out or give it one")
	case t.Kind() == reflect.Struct || t.Kind() == reflect.Map:
		d.checkSection(n, t, at)
	case t.Kind() == reflect.Slice:
		d.checkList(n, t.Elem(), tag, at)
	case n.Kind != yaml.ScalarNode:
		d.fault(n, at, "is %s, not a single value", kind(n))
	default:
		d.checkScalar(n, t, tag, at)
	}
}

// notRead is about what would let a text mean something else than it shows.
const notRead = "YAML anchors, aliases and tags are not read here"

func fancy(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0
}

// checkSection checks the keys of a struct, or those of a map, which are free.
func (d *document) checkSection(n *yaml.Node, t reflect.Type, at string) {
	if n.Kind != yaml.MappingNode {
		d.fault(n, at, "is %s, not a section with keys", kind(n))
		return
	}
	var fields []reflect.StructField
	if t.Kind() == reflect.Struct {
		fields = fieldsOf(t)
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := join(at, key.Value)
		f := slices.IndexFunc(fields, func(f reflect.StructField) bool { return f.Name == key.Value })
		first, twice := seen[key.Value]
		switch {
		case fancy(key):
			d.fault(key, name, notRead)
			continue
		case twice:
			d.fault(key, name, "duplicate key; the first is on line %d", first)
		case t.Kind() == reflect.Map:
			d.check(value, t.Elem(), "", name)
		case f < 0:
			d.fault(key, name, "unknown key; %s", hint(key.Value, fields))
		default:
			d.check(value, fields[f].Type, fields[f].Tag, name)
		}
		seen[key.Value] = key.Line
	}
	for _, f := range fields {
		if _, ok := seen[f.Name]; f.Tag.Get("required") == "true" && !ok {
			d.fault(n, join(at, f.Name), "is missing")
		}
	}
}

// checkList checks the entries of a list, which the tag "unique" wants to differ.
func (d *document) checkList(n *yaml.Node, t reflect.Type, tag reflect.StructTag, at string) {
	if n.Kind != yaml.SequenceNode {
		d.fault(n, at, "is %s, not a list", kind(n))
		return
	}
	for i, item := range n.Content {
		place := fmt.Sprintf("%s[%d]", at, i)
		d.check(item, t, tag, place)
		first := slices.IndexFunc(n.Content, func(o *yaml.Node) bool { return o.Value == item.Value })
		if tag.Get("unique") == "true" && first < i {
			d.fault(item, place, "%s is also entry %d", item.Value, first)
		}
	}
}

// checkScalar checks a single value against its type and the tags "enum", words
// with commas between, and "range", 1-100 or 0s-1h.
func (d *document) checkScalar(n *yaml.Node, t reflect.Type, tag reflect.StructTag, at string) {
	words, isEnum := tag.Lookup("enum")
	low, high, _ := strings.Cut(tag.Get("range"), "-")
	v := reflect.New(t)
	text, checks := reflect.TypeAssert[interface{ Check() error }](v)
	switch short := n.ShortTag(); {
	case isEnum:
		d.checkWord(n, strings.Split(words, ","), at)
	case checks:
		// A number is a text here: 1021 is a device ID as 15b3 is.
		v.Elem().SetString(n.Value)
		if err := text.Check(); err != nil {
			d.fault(n, at, "%w", err)
		}
	case t == reflect.TypeFor[time.Duration]():
		if !within(n.Value, low, high, time.ParseDuration) {
			d.fault(n, at, "%q is no duration from %s to %s, such as 30s", n.Value, low, high)
		}
		n.Tag = "!!str" // yaml decodes no number into a duration, and 0 is one.
	case t.Kind() == reflect.String && short != "!!str":
		d.fault(n, at, "%s is %s, not a text; put it in quotes", n.Value, kind(n))
	case t.Kind() == reflect.Bool && short != "!!bool":
		d.fault(n, at, "%q is not true or false", n.Value)
	case t.Kind() == reflect.Int && short != "!!int":
		d.fault(n, at, "%q is not a whole number", n.Value)
	case t.Kind() == reflect.Float64 && short != "!!int" && short != "!!float":
		d.fault(n, at, "%q is not a number", n.Value)
	case t.Kind() == reflect.Float64 && !within(n.Value, low, high, decimal):
		d.fault(n, at, "%s is not between %s and %s", n.Value, low, high)
	case t.Kind() == reflect.Int && !within(n.Value, low, high, wholeNumber):
		d.fault(n, at, "%s is not between %s and %s", n.Value, low, high)
	}
}

// within reports whether a text is a value from low to high.
func within[T cmp.Ordered](text, low, high string, parse func(string) (T, error)) bool {
	v, err := parse(text)
	lowest, errLow := parse(low)
	highest, errHigh := parse(high)
	return errors.Join(err, errLow, errHigh) == nil && lowest <= v && v <= highest
}

// wholeNumber reads what YAML takes for one: 0x10 too.
func wholeNumber(text string) (int64, error) { return strconv.ParseInt(text, 0, 64) }

// decimal reads a number; NaN is within no range.
func decimal(text string) (float64, error) { return strconv.ParseFloat(text, 64) }

// checkWord finds out which allowed word was meant.
func (d *document) checkWord(n *yaml.Node, words []string, at string) {
	if slices.Contains(words, n.Value) && n.ShortTag() == "!!str" {
		return
	}
	meant := ""
	for _, word := range words {
		if near(word, n.Value) {
			meant = fmt.Sprintf("; did you mean %q?", word)
		}
	}
	d.fault(n, at, "%q is not one of %s%s", n.Value, quoted(words), meant)
}

// fieldsOf lists the fields of a struct that are keys, with those of inlined
// structs, each under its key's name.
func fieldsOf(t reflect.Type) (fields []reflect.StructField) {
	for _, f := range reflect.VisibleFields(t) {
		if f.Name, _, _ = strings.Cut(f.Tag.Get("yaml"), ","); f.Name != "" && f.Name != "-" {
			fields = append(fields, f)
		}
	}
	return fields
}

func join(at, key string) string {
	if at == "" || key == "" {
		return at + key
	}
	return at + "." + key
}

// place is the line of a path, or of the nearest section around it; ok is
// false if nothing of it is written in the document.
func (d *document) place(prefix, path string) (line int, ok bool) {
	line, ok = d.lines[join(prefix, path)]
	if end := strings.LastIndexAny(path, ".["); !ok && end > 0 {
		return d.place(prefix, path[:end])
	}
	return line, ok
}
