package convert

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// section is one mapping of a peer's configuration. Reading a key removes it, so that the remaining
// keys are the ones without a translation.
type section struct {
	path string
	// key names a file in a ConfigMap.
	key    string
	fields map[string]any
	subs   []*section
	// fault is the first of the whole file. Who reads goes on, as over an empty file.
	fault *error
}

func parse(text []byte) (*section, error) {
	var fields map[string]any
	if err := yaml.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("not a mapping in YAML or JSON: %w", err)
	}
	return &section{fields: fields, fault: new(error)}, nil
}

// unwrap finds the files in a ConfigMap: the key of that name, or all keys; other content is the
// file itself. Other keys stay in the ConfigMap.
func unwrap(root *section, name string) (files []*section, err error) {
	data, ok := root.fields["data"].(map[string]any)
	if !ok {
		return []*section{root}, nil
	}
	keys := slices.Sorted(maps.Keys(data))
	if _, found := data[name]; found {
		keys = []string{name}
	}
	if len(keys) == 0 {
		return nil, errors.New("data: the ConfigMap is empty")
	}
	below := root.sub("data")
	for _, key := range []string{"apiVersion", "kind", "metadata"} {
		delete(root.fields, key)
	}
	for _, key := range keys {
		inner, err := parse([]byte(take[string](below, key)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", below.at(key), err)
		}
		inner.fault, inner.key = root.fault, key
		if len(keys) > 1 {
			inner.path = below.at(key)
		}
		files, root.subs = append(files, inner), append(root.subs, inner)
	}
	return files, nil
}

// at returns the place of a key. A key is any text, and a comment is one line.
func (s *section) at(key string) string {
	if quoted := strconv.QuoteToASCII(key); quoted != `"`+key+`"` {
		key = quoted
	}
	return strings.TrimPrefix(s.path+"."+key, ".")
}

func (s *section) failf(format string, args ...any) {
	if *s.fault == nil {
		*s.fault = fmt.Errorf(format, args...)
	}
}

// take removes a value of a type; a key that is absent or null gives zero.
func take[T any](s *section, key string) T {
	value := s.fields[key]
	delete(s.fields, key)
	typed, ok := value.(T)
	if value != nil && !ok {
		s.failf("%s: %T is not of type %T", s.at(key), value, typed)
	}
	return typed
}

// sub returns a mapping below; one that is absent is empty.
func (s *section) sub(key string) *section {
	below := &section{path: s.at(key), fields: take[map[string]any](s, key), fault: s.fault}
	s.subs = append(s.subs, below)
	return below
}

// list returns the mappings of a list.
func (s *section) list(key string) []*section {
	var list []*section
	for i, entry := range take[[]any](s, key) {
		path := fmt.Sprintf("%s[%d]", s.at(key), i)
		fields, ok := entry.(map[string]any)
		if !ok {
			s.failf("%s: %T is not a mapping", path, entry)
		}
		list = append(list, &section{path: path, fields: fields, fault: s.fault})
	}
	s.subs = append(s.subs, list...)
	return list
}

// left returns the place of everything that was not taken.
func (s *section) left() []string {
	var paths []string
	for _, key := range slices.Sorted(maps.Keys(s.fields)) {
		paths = append(paths, s.at(key))
	}
	for _, below := range s.subs {
		paths = append(paths, below.left()...)
	}
	return paths
}
