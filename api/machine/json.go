package machine

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"sigs.k8s.io/json"
)

// MaxDump is the largest dump that Decode takes, in bytes. A machine with 16
// GPUs and 32 HCAs needs 100 KB.
const MaxDump = 4 << 20

// Encode writes m as indented JSON that ends in a newline. Equal machines
// give equal bytes: lists are empty, never null.
func Encode(m *Machine) ([]byte, error) {
	c := *m
	fill(reflect.ValueOf(&c).Elem())
	b, err := stdjson.MarshalIndent(&c, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode machine %s: %w", m.Node, err)
	}
	return append(b, '\n'), nil
}

// fill makes nil lists of x empty, so that JSON has [] and never null. Every
// list is copied before it is changed.
func fill(x reflect.Value) {
	switch x.Kind() { //nolint:exhaustive // The others have no lists.
	case reflect.Struct:
		for f, value := range x.Fields() {
			if !strings.HasSuffix(f.Tag.Get("json"), ",omitempty") {
				fill(value)
			}
		}
	case reflect.Slice:
		list := reflect.MakeSlice(x.Type(), x.Len(), x.Len())
		reflect.Copy(list, x)
		x.Set(list)
		for i := range x.Len() {
			fill(x.Index(i))
		}
	}
}

// Decode reads a dump. It is strict: an unknown field or one in another case, a duplicate field, a wrong type, a
// second document, an unknown version or a value that contradicts another is an error that names the field, and
// invalid JSON one that names line and column.
func Decode(b []byte) (*Machine, error) {
	if len(b) > MaxDump {
		return nil, fmt.Errorf("machine: %d bytes, more than %d", len(b), MaxDump)
	}
	var m Machine
	strict, err := json.UnmarshalStrict(b, &m)
	if invalid, offset := json.SyntaxErrorOffset(err); invalid {
		return nil, fmt.Errorf("machine: %s: %w", position(b, offset), err)
	} else if err != nil {
		return nil, fmt.Errorf("machine: %w", err)
	}
	if err := errors.Join(append(strict, m.Validate())...); err != nil {
		return nil, fmt.Errorf("machine: %w", err)
	}
	fill(reflect.ValueOf(&m).Elem())
	return &m, nil
}

// position returns the line and column, counted from 1, of a byte offset.
func position(b []byte, offset int64) string {
	head := b[:min(max(offset, 0), int64(len(b)))]
	line := bytes.Count(head, []byte("\n")) + 1
	column := len(head) - bytes.LastIndexByte(head, '\n')
	return fmt.Sprintf("line %d, column %d", line, column)
}
