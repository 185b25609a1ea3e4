package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/heddle-dev/heddle/test/docs"
)

var (
	fenced  = regexp.MustCompile("(?ms)^```(?:sh|console|text)\n(.*?)^```")
	comment = regexp.MustCompile(`\s+#.*|\s*[|&;<>].*`)
)

// TestDocumentedCommands finds every command and flag of heddle that the documentation's blocks use.
func TestDocumentedCommands(t *testing.T) {
	found := 0
	for page, text := range docs.Pages(t, "../..") {
		if page == "docs/reference/cli.md" { // TestReference makes it of the program's help.
			continue
		}
		for _, block := range fenced.FindAllStringSubmatch(text, -1) {
			for line := range strings.SplitSeq(strings.ReplaceAll(block[1], "\\\n", " "), "\n") {
				line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
				line = strings.Replace(line, "go run ./cmd/heddle ", "heddle ", 1)
				if words := strings.Fields(comment.ReplaceAllString(line, "")); len(words) > 1 && words[0] == "heddle" {
					found++
					checkCommand(t, page, words[1:])
				}
			}
		}
	}
	if found < 30 {
		t.Errorf("%d commands found", found)
	}
}

// TestDocumentedExitCodes compares the commands that docs/reference/cli.md names beside exit code 1 with
// those that name it in their help.
func TestDocumentedExitCodes(t *testing.T) {
	_, row, _ := strings.Cut(docs.Pages(t, "../..")["docs/reference/cli.md"], "| exit code 1 |")
	row, _, _ = strings.Cut(row, "\n")
	var documented, helped []string
	for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row, -1) {
		documented = append(documented, "heddle "+name[1])
	}
	for _, c := range below(newCommand("heddle")) {
		help := strings.Join(strings.Fields(c.Long+" "+c.Short), " ")
		if regexp.MustCompile(`[Ee]xit code 1|exits with 1`).MatchString(help) {
			helped = append(helped, c.CommandPath())
		}
	}
	slices.Sort(documented)
	slices.Sort(helped)
	if diff := cmp.Diff(documented, helped); diff != "" {
		t.Errorf("docs/reference/cli.md and the help differ (-docs +help):\n%s", diff)
	}
}

// below are the commands of a command, and theirs.
func below(c *cobra.Command) (all []*cobra.Command) {
	for _, sub := range c.Commands() {
		all = append(append(all, sub), below(sub)...)
	}
	return all
}

// checkCommand finds the command, and its flags.
func checkCommand(t *testing.T, page string, words []string) {
	t.Helper()
	c, rest, err := newCommand("heddle").Find(words)
	if err != nil || c.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
		t.Errorf("%s: heddle %s: there is no such command: %v", page, strings.Join(words, " "), err)
		return
	}
	for _, word := range rest {
		if word == "--" {
			return // Another program's follow.
		}
		name, _, _ := strings.Cut(word, "=")
		if strings.HasPrefix(name, "-") && !hasFlag(c, name) {
			t.Errorf("%s: heddle %s: there is no flag %s", page, strings.Join(words, " "), name)
		}
	}
}

// hasFlag is about the flags of the command and those that it has of its parents.
func hasFlag(c *cobra.Command, word string) bool {
	c.InitDefaultHelpFlag()
	if name, long := strings.CutPrefix(word, "--"); long {
		return c.Flag(name) != nil
	}
	name := word[1:]
	return len(name) == 1 && (c.Flags().ShorthandLookup(name) != nil || c.InheritedFlags().ShorthandLookup(name) != nil)
}
