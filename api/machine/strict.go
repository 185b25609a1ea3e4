package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// checkKeys finds what encoding/json lets pass in a text that it has decoded: a
// key that no field has in this very spelling, a key twice in one object, null
// where a value cannot be unknown.
func checkKeys(b []byte) error {
	w := walker{text: b, tokens: json.NewDecoder(bytes.NewReader(b))}
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
}

// fault reports what is wrong with the token of this length that was read last.
func (w *walker) fault(length int, path, format string, args ...any) {
	if len(w.faults) < maxFaults {
		place := position(w.text, w.tokens.InputOffset()-int64(length))
		w.faults = append(w.faults, fmt.Errorf("%s: %s: %w", place, path, fmt.Errorf(format, args...)))
	}
}

// next is nil for null, and at the end of the text.
func (w *walker) next() json.Token {
	token, err := w.tokens.Token()
	if err != nil {
		return nil
	}
	return token
}

// value reads one value, which is a t, as Decode has found.
func (w *walker) value(t reflect.Type, path string) {
	isPointer := t.Kind() == reflect.Pointer
	if isPointer {
		t = t.Elem()
	}
	switch w.next() {
	case nil:
		if !isPointer {
			w.fault(len("null"), path, "null; only what may be unknown can be null")
		}
	case json.Delim('{'):
		w.object(t, path)
	case json.Delim('['):
		for i := 0; w.tokens.More(); i++ {
			w.value(t.Elem(), fmt.Sprintf("%s[%d]", path, i))
		}
		w.next()
	}
}

// object reads the keys of a struct, or of a map, which may have any, and the end of
// the object.
func (w *walker) object(t reflect.Type, path string) {
	fields := map[string]reflect.Type{}
	if t.Kind() == reflect.Struct {
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			fields[name] = f.Type
		}
	}
	seen := map[string]bool{}
	for w.tokens.More() {
		key := fmt.Sprint(w.next())
		at := strings.TrimPrefix(path+"."+key, ".")
		field, known := fields[key]
		if t.Kind() == reflect.Map {
			field, known = t.Elem(), true
		}
		switch {
		case seen[key]:
			w.fault(len(key)+2, at, "duplicate key")
		case !known:
			w.fault(len(key)+2, at, "unknown field%s", hint(key, fields))
		}
		seen[key] = true
		if known {
			w.value(field, at)
		} else if w.tokens.Decode(new(json.RawMessage)) != nil {
			return
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
