package demo

import (
	"context"
	"flag"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/test/clitest"
)

var update = flag.Bool("update", false, "write docs/get-started/demo.md")

// stable is a session without what differs from run to run: the port, the time, and how
// long a plan took.
func stable(session string) string {
	for pattern, with := range map[string]string{
		`127\.0\.0\.1:\d+`:                   "127.0.0.1:9001",
		`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+`: "2026-11-23 02:20:31 UTC",
		`[ \d]{2}\.\d\d ms`:                  " 0.02 ms",
	} {
		session = regexp.MustCompile(pattern).ReplaceAllString(session, with)
	}
	return strings.TrimSpace(session) + "\n"
}

// TestSession keeps docs/get-started/demo.md equal to what the command prints.
func TestSession(t *testing.T) {
	out, diagnostics, err := clitest.Run(t, NewCommand(), "--listen", "127.0.0.1:0")
	if err != nil || diagnostics != "" {
		t.Fatalf("%v, %q", err, diagnostics)
	}
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(line); n > cli.Width+1 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	const docs, begin, end = "../../../../docs/get-started/demo.md", "```text\n$ heddle demo\n\n", "```\n"
	old, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no block that begins with %q", docs, begin)
	}
	now := before + begin + stable(out) + end + after
	if *update {
		if err := os.WriteFile(docs, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(old), now); diff != "" {
		t.Errorf("the document and the program differ (-docs +program; -update writes it):\n%s", diff)
	}
}

// A large fleet is shown in as many lines.
func TestLargeFleet(t *testing.T) {
	out, _, err := clitest.Run(t, NewCommand(), "--listen", "127.0.0.1:0", "--nodes", "2000")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out, "\n"); n > 120 {
		t.Errorf("%d lines", n)
	}
	for _, want := range []string{"2000 nodes: 2000 ready", "32 of 32", "32 of 36 fit"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestMistakes(t *testing.T) {
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--nodes", "3"}, "--nodes 3 is not 73 to 100000"},
		{[]string{"--listen", taken.Addr().String()}, "Give another address with --listen"},
	} {
		_, _, err := clitest.Run(t, NewCommand(), tt.args...)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %q", tt.args, err, tt.want)
		}
	}
	other, err := listen(t.Context(), taken.Addr().String(), true)
	if err != nil {
		t.Fatalf("the default port is taken, and no other: %v", err)
	}
	_ = other.Close()
}

// cancelAt cancels when a text is written.
type cancelAt struct {
	written strings.Builder
	text    string
	cancel  context.CancelFunc
}

func (w *cancelAt) Write(b []byte) (int, error) {
	if strings.Contains(string(b), w.text) {
		w.cancel()
	}
	return w.written.Write(b)
}

// Ctrl-C ends the demo without an error, at the end and in the middle.
func TestInterrupt(t *testing.T) {
	for _, at := range []string{"until Ctrl-C", "Three gangs"} {
		ctx, cancel := context.WithCancel(t.Context())
		c := &cobra.Command{}
		out := &cancelAt{text: at, cancel: cancel}
		c.SetContext(ctx)
		c.SetOut(out)
		c.SetErr(io.Discard)
		c.Flags().String("listen", "", "")
		if err := run(c, &options{nodes: minNodes, listen: "127.0.0.1:0"}); err != nil {
			t.Errorf("at %q: %v", at, err)
		}
		if !strings.Contains(out.written.String(), at) {
			t.Errorf("it ended before %q:\n%s", at, out.written.String())
		}
	}
}
