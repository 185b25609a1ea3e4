package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// MaxDump is the largest dump that Decode takes, in bytes. A machine with 16
// GPUs and 32 HCAs needs 100 KB.
const MaxDump = 4 << 20

// Encode writes m as indented JSON that ends in a newline. Equal machines
// give equal bytes: lists are empty, never null.
func Encode(m *Machine) ([]byte, error) {
	c := *m
	c.normalize()
	b, err := json.MarshalIndent(&c, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode machine %s: %w", m.Node, err)
	}
	return append(b, '\n'), nil
}

// Decode reads a dump. It is strict: an unknown field, a wrong type, a second
// document, an unknown version or a value that contradicts another is an error
// that names the line and column or the field.
func Decode(b []byte) (*Machine, error) {
	if len(b) > MaxDump {
		return nil, fmt.Errorf("machine: %d bytes, more than %d", len(b), MaxDump)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var m Machine
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("machine: %s%w", place(b, d, err), err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("machine: %s: more after the end of the object", position(b, d.InputOffset()))
	}
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("machine: %w", err)
	}
	m.normalize()
	return &m, nil
}

// place says where err happened, with a colon after it; empty if encoding/json
// does not tell.
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
	case strings.HasPrefix(err.Error(), unknownField):
		// Fields are compared after the whole document was read, and the error
		// has a name and no offset. A name that is a field elsewhere has
		// several places; a wrong one would be worse than none.
		field := []byte(strings.TrimPrefix(err.Error(), unknownField))
		if bytes.Count(b, field) != 1 {
			return ""
		}
		offset = int64(bytes.Index(b, field))
	}
	return position(b, offset) + ": "
}

// unknownField begins the text of encoding/json's error, which has no type.
const unknownField = "json: unknown field "

// position is the line and column, counted from 1, of a byte offset.
func position(b []byte, offset int64) string {
	head := b[:min(max(offset, 0), int64(len(b)))]
	line := bytes.Count(head, []byte("\n")) + 1
	column := len(head) - bytes.LastIndexByte(head, '\n')
	return fmt.Sprintf("line %d, column %d", line, column)
}
