//go:build e2e && linux

package devices

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/test/docs"
)

// procedure is what docs/day-2.md has an operator type under a heading. A command that the page changes
// is the one that is run, and one that it adds fails the test.
type procedure struct {
	rig *rig
	// left are the commands that are still to come, with the names of this cluster.
	left []string
}

// procedure reads one. names are the page's names and this cluster's, in pairs.
func (r *rig) procedure(t *testing.T, heading string, names ...string) *procedure {
	t.Helper()
	p := &procedure{rig: r}
	for _, command := range docs.Commands(t, "../../..", "docs/day-2.md", heading) {
		p.left = append(p.left, strings.NewReplacer(names...).Replace(command))
	}
	return p
}

// next is the next command, which is to begin with these words.
func (p *procedure) next(t *testing.T, begin string) string {
	t.Helper()
	if len(p.left) == 0 || !strings.HasPrefix(p.left[0], begin) {
		t.Fatalf("docs/day-2.md has %q next, and the test %q", p.left, begin)
	}
	command := p.left[0]
	p.left = p.left[1:]
	return command
}

// run runs the next command, which is to exit with 0, and returns what it prints.
func (p *procedure) run(t *testing.T, begin string) string {
	t.Helper()
	command := p.next(t, begin)
	out, code := p.rig.shell(t, command)
	if code != 0 {
		t.Fatalf("%s: exit code %d\n%s", command, code, out)
	}
	t.Logf("$ %s\n%s", command, out)
	return out
}

// runUntilDone runs the next command again and again until it exits with 0.
func (p *procedure) runUntilDone(t *testing.T, begin string) {
	t.Helper()
	command, runs, printed := p.next(t, begin), 0, ""
	took := eventually(t, func() string {
		runs++
		out, code := p.rig.shell(t, command)
		if code != 0 {
			return fmt.Sprintf("%s: exit code %d\n%s", command, code, out)
		}
		printed = out
		return ""
	})
	t.Logf("$ %s    # run %d times in %.1f s\n%s", command, runs, took.Seconds(), printed)
}

// done fails the test if the page has more.
func (p *procedure) done(t *testing.T) {
	t.Helper()
	if len(p.left) > 0 {
		t.Fatalf("docs/day-2.md has also %q", p.left)
	}
}

// shell runs a line as an operator does, who has heddle and kubectl in the PATH.
func (r *rig) shell(t *testing.T, line string) (out string, code int) {
	t.Helper()
	kubectl := r.KubectlCommand(t.Context())
	path := strings.Join([]string{filepath.Dir(program(t, "heddle")), filepath.Dir(kubectl.Path), os.Getenv("PATH")}, ":")
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", line)
	cmd.Env = slices.Concat(kubectl.Env, []string{"PATH=" + path})
	return exit(t, cmd)
}
