package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/test/golden"
)

var update = flag.Bool("update", false, "write docs/get-started/overview.md")

// TestSession keeps docs/get-started/overview.md equal to what `make fleet` prints, but for the port and times.
func TestSession(t *testing.T) {
	command := filepath.Join(t.TempDir(), "heddle")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", command, "../../../cmd/heddle").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var out strings.Builder
	if err := run(t.Context(), &out, command, minNodes, 0); err != nil {
		t.Fatal(err)
	}
	session := out.String()
	for pattern, with := range map[string]string{
		`127\.0\.0\.1:\d+`:                   "127.0.0.1:9001",
		`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \w+`: "2026-11-23 02:20:31 UTC",
		`[ \d]{2}\.\d\d ms`:                  " 0.02 ms",
	} {
		session = regexp.MustCompile(pattern).ReplaceAllString(session, with)
	}
	const docs, begin, end = "../../../docs/get-started/overview.md", "```text\n$ make fleet\n", "```\n"
	old, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no block that begins with %q", docs, begin)
	}
	golden.Compare(t, docs, before+begin+session+end+after, *update)
}
