package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// checkKeys finds what encoding/json lets pass: a key that no field has in
// this very spelling, a key twice in one object, null where a value cannot be
// unknown. Decode reports the rest, syntax and types.
func checkKeys(b []byte) error {
	w := walker{text: b, tokens: json.NewDecoder(strings.NewReader(string(b)))}
	w.tokens.UseNumber()
	w.value(reflect.TypeFor[Machine](), "")
	return errors.Join(w.faults...)
}

// maxFaults is how many faults are reported: one mistake in a script's spelling is
// in every device.
const maxFaults = 10

type walker struct {
	text   []byte
	tokens *json.Decoder
	faults []error
	// broken reports that the text is no JSON; Decode reports where.
	broken bool
}

// fault reports what is wrong with the token of this length that was read last.
func (w *walker) fault(length int, path, format string, args ...any) {
	if len(w.faults) < maxFaults {
		place := position(w.text, w.tokens.InputOffset()-int64(length))
		w.faults = append(w.faults, fmt.Errorf("%s: %s: %w", place, path, fmt.Errorf(format, args...)))
	}
}

func (w *walker) next() json.Token {
	token, err := w.tokens.Token()
	w.broken = w.broken || err != nil
	return token
}

// value reads one value that should be a t. The recursion's depth is that of t, so that no
// text makes it deep; what is no t is left to Decode.
func (w *walker) value(t reflect.Type, path string) {
	token := w.next()
	if w.broken {
		return
	}
	if token == nil && t.Kind() != reflect.Pointer {
		w.fault(len("null"), path, "null; only what may be unknown can be null")
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	delim, _ := token.(json.Delim)
	switch {
	case delim == '{' && t.Kind() == reflect.Struct:
		w.object(t, path)
	case delim == '[' && t.Kind() == reflect.Slice:
		for i := 0; w.tokens.More() && !w.broken; i++ {
			w.value(t.Elem(), fmt.Sprintf("%s[%d]", path, i))
		}
		w.next()
	case delim == '{', delim == '[':
		w.skip()
	}
}

// object reads the keys of a struct and the end of the object.
func (w *walker) object(t reflect.Type, path string) {
	fields := map[string]reflect.Type{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields[name] = f.Type
	}
	seen := map[string]bool{}
	for w.tokens.More() && !w.broken {
		key, ok := w.next().(string)
		if !ok {
			w.broken = true
			return
		}
		at := strings.TrimPrefix(path+"."+key, ".")
		field, known := fields[key]
		switch {
		case seen[key]:
			w.fault(len(key)+2, at, "stands here twice")
		case !known:
			w.fault(len(key)+2, at, "unknown field%s", hint(key, fields))
		}
		seen[key] = true
		if known {
			w.value(field, at)
		} else {
			w.skipValue()
		}
	}
	w.next()
}

// hint names the field that differs in case only.
func hint(key string, fields map[string]reflect.Type) string {
	for name := range fields {
		if strings.EqualFold(name, key) {
			return "; did you mean " + name + "?"
		}
	}
	return ""
}

func (w *walker) skipValue() {
	if _, open := w.next().(json.Delim); open {
		w.skip()
	}
}

// skip reads to the end of the object or list that was opened.
func (w *walker) skip() {
	for depth := 1; depth > 0 && !w.broken; {
		switch w.next() {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}
