package cli

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTableAlignsWhatATerminalShows(t *testing.T) {
	rows := [][]string{{"", "GPU0", "CPUs"}, {"mlx5_0", "PIX", "0-3"}, {"größe", "X"}, {"a\x1b[31m\nb", "", ""}}
	want := "          GPU0  CPUs\n" +
		"mlx5_0    PIX   0-3\n" +
		"größe     X\n" +
		"a?[31m?b\n"
	if diff := cmp.Diff(want, Table(rows, 2)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestTableOfInvalidText(t *testing.T) {
	if got := Table([][]string{{"\xff\xfe", "b"}, {"long cell", "b"}}, 1); !strings.HasSuffix(got, "long cell b\n") {
		t.Errorf("got %q", got)
	}
}

func TestExit(t *testing.T) {
	for _, tt := range []struct {
		name   string
		err    error
		code   int
		stderr string
	}{
		{"done", nil, 0, ""},
		{"help", flag.ErrHelp, 0, ""},
		{"findings", fmt.Errorf("doctor: %w", ErrFindings), 1, ""},
		{"failed", errors.New("read x: gone"), 1, "heddle: read x: gone\n"},
		{"usage", Usagef("inspect", "no such flag"), 2, "heddle: no such flag\nTry: heddle help inspect\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stderr strings.Builder
			if code := Exit(tt.err, &stderr); code != tt.code || stderr.String() != tt.stderr {
				t.Errorf("exit %d with %q, want %d with %q", code, stderr.String(), tt.code, tt.stderr)
			}
		})
	}
}
