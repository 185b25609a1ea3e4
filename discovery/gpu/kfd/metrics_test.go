package kfd

import (
	"bytes"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUnmanaged(t *testing.T) {
	for name, tt := range map[string]struct {
		table []byte
		err   error
		want  bool
	}{
		"a table":           {[]byte{0x78, 0, 1, 3, 0}, nil, false},
		"no table":          {nil, fmt.Errorf("read x: %w", unix.ENOENT), false},
		"not supported":     {nil, fmt.Errorf("read x: %w", unix.EOPNOTSUPP), false},
		"the GPU is asleep": {nil, fmt.Errorf("read x: %w", unix.EPERM), false},
		"empty":             {nil, nil, false},
		"an error":          {nil, fmt.Errorf("read x: %w", unix.EIO), true},
		"no answer in time": {nil, fmt.Errorf("read x: %w", unix.ETIME), true},
		"off the bus":       {bytes.Repeat([]byte{0xff}, 120), nil, true},
		"cut off":           {[]byte{0x78}, nil, true},
	} {
		if got := unmanaged(tt.table, tt.err); (got != "") != tt.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
