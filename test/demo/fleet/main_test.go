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

var update = flag.Bool("update", false, "write the session")

// TestSession compares what `make fleet` prints, but for the port and times, with the session and with its parts in the README.
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
		`127\.0\.0\.1:\d+`:     "127.0.0.1:9001",
		`  \d{1,2}s +rejected`: "  0s   rejected",
		`(?m)  \d{1,2}s$`:      "  0s",
		` for \d{1,2}s`:        " for 0s",
		`[ \d]{2}\.\d\d ms`:    " 0.02 ms",
	} {
		session = regexp.MustCompile(pattern).ReplaceAllString(session, with)
	}
	golden.Compare(t, "testdata/session.txt", session, *update)
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(readme), "```text\n$ make fleet\n")
	block, _, _ = strings.Cut(block, "```")
	if block == "" {
		t.Fatal("README.md has no session")
	}
	for line := range strings.Lines(block) {
		if !strings.Contains(session, line) {
			t.Errorf("README.md has %q, which `make fleet` does not print", line)
		}
	}
}
