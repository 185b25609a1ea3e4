//go:build e2e && linux

package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// commandsAnswer runs the documented commands that take one address of two, and the same for
// the other one: the answers are equal, and have a text.
func (b *topoChart) commandsAnswer(t *testing.T, want string) {
	t.Helper()
	commands := documented(t, b.path("docs/get-started/install.md"), "TOPO_MASTER_IP=")
	eventually(t, func() string {
		answer, err := b.NodeExec(t.Context(), "sh", "-ec", commands)
		if err != nil {
			return err.Error()
		}
		other, err := b.NodeExec(t.Context(), "sh", "-ec", strings.Replace(commands, "head -1", "tail -1", 1))
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(answer, want) {
			return "documented command: " + answer
		}
		return cmp.Diff(answer, other)
	})
}

// documented is the block of commands of a page that begins with a text, as it stands
// there.
func documented(t *testing.T, page, begin string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(text), "```sh\n"+begin)
	block, _, closed := strings.Cut(block, "```")
	if !found || !closed {
		t.Fatalf("%s has no commands that begin with %s", page, begin)
	}
	return begin + block
}
