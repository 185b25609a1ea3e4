package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// MaxDump is the largest dump that Decode takes, in bytes. A machine with 16
// GPUs and 32 HCAs needs 100 KB.
const MaxDump = 4 << 20

// Encode writes m as indented JSON that ends in a newline. Equal machines
// give equal bytes: lists are empty, never null.
func Encode(m *Machine) ([]byte, error) {
	c := *m
	fill(reflect.ValueOf(&c).Elem())
	b, err := json.MarshalIndent(&c, "", "  ")
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

// Decode reads a dump. It is strict: an unknown field or one in another case,
// a field twice, a wrong type, a null that is no "unknown", a second document,
// an unknown version or a value that contradicts another is an error that names
// the line and column or the field.
func Decode(b []byte) (*Machine, error) {
	if len(b) > MaxDump {
		return nil, fmt.Errorf("machine: %d bytes, more than %d", len(b), MaxDump)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	var m Machine
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("machine: %s: %w", place(b, d, err), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("machine: %s: more after the end of the object", position(b, d.InputOffset()))
	}
	if err := errors.Join(checkKeys(b), m.Validate()); err != nil {
		return nil, fmt.Errorf("machine: %w", err)
	}
	fill(reflect.ValueOf(&m).Elem())
	return &m, nil
}

// place is where err happened.
func place(b []byte, d *json.Decoder, err error) string {
	offset := d.InputOffset()
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &typ):
		offset = typ.Offset
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		offset = int64(len(b))
	}
	return position(b, offset)
}

// position is the line and column, counted from 1, of a byte offset.
func position(b []byte, offset int64) string {
	head := b[:min(max(offset, 0), int64(len(b)))]
	line := bytes.Count(head, []byte("\n")) + 1
	column := len(head) - bytes.LastIndexByte(head, '\n')
	return fmt.Sprintf("line %d, column %d", line, column)
}
