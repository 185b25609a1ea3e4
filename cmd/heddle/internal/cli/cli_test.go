package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

func TestTableAlignsWhatATerminalShows(t *testing.T) {
	rows := [][]string{{"", "GPU0", "CPUs"}, {"mlx5_0", "PIX", "0-3"}, {"größe", "X"}, {"a\x1b[31m\nb", "", ""}}
	want := "          GPU0  CPUs\n" +
		"mlx5_0    PIX   0-3\n" +
		"größe     X\n" +
		"a?[31m?b\n"
	if diff := cmp.Diff(want, Table(rows)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestTableOfInvalidText(t *testing.T) {
	if got := Table([][]string{{"\xff\xfe", "b"}, {"long cell", "b"}}); !strings.HasSuffix(got, "long cell  b\n") {
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
		{"findings", fmt.Errorf("doctor: %w", ErrFindings), 1, ""},
		{"failed", errors.New("read x: gone"), 2, "heddle: read x: gone\n"},
		{"usage", UsageErrorf(&cobra.Command{Use: "inspect"}, "no such flag"), 2, "heddle: no such flag\nSee 'inspect --help'\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stderr strings.Builder
			if code := Exit(tt.err, &stderr); code != tt.code || stderr.String() != tt.stderr {
				t.Errorf("exit %d with %q, want %d with %q", code, stderr.String(), tt.code, tt.stderr)
			}
		})
	}
}

func TestOutput(t *testing.T) {
	for format, want := range map[string]string{
		"table": "NAME\n", "wide": "NAME\n", "json": "{\n  \"name\": \"x\"\n}\n", "yaml": "name: x\n",
	} {
		var out strings.Builder
		c := &cobra.Command{Use: "test"}
		c.SetOut(&out)
		o := AddOutput(c)
		c.RunE = func(c *cobra.Command, _ []string) error { return o.Print(c, map[string]string{"name": "x"}, "NAME\n") }
		c.SetArgs([]string{"--output", format})
		if err := c.Execute(); err != nil || out.String() != want {
			t.Errorf("%s: error %v, output %q", format, err, out.String())
		}
	}
}
