package docs

import (
	"strings"
	"testing"
)

// Commands are what a page has its reader type under a heading of the second level, line by line, with the
// comments behind them. A test that runs them fails once the page has one that does not work.
func Commands(tb testing.TB, root, page, heading string) []string {
	tb.Helper()
	_, section, _ := strings.Cut(Pages(tb, root)[page], "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var commands []string
	inBlock := false
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "```"):
			inBlock = line == "```sh"
		case inBlock && line != "":
			commands = append(commands, line)
		}
	}
	if len(commands) == 0 {
		tb.Fatalf("%s has no commands under %q", page, heading)
	}
	return commands
}
