package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every row of docs/reliability.md names tests that a command above its table runs.
func TestReliability(t *testing.T) {
	text, err := os.ReadFile(root + "/docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		title, _, _ := strings.Cut(section, "\n")
		_, block, _ := strings.Cut(section, "```sh\n")
		block, table, _ := strings.Cut(block, "```\n")
		there := testsOf(t, block)
		for line := range strings.Lines(table) {
			cells := strings.Split(line, "|")
			if len(cells) != 5 || strings.Contains(line, "---") || strings.Contains(line, "| what was done |") {
				continue
			}
			rows++
			named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(cells[3], -1)
			if len(named) == 0 {
				t.Errorf("%s: no test in the row %s", title, cells[1])
			}
			for _, n := range named {
				if !slices.Contains(there, n[1]) {
					t.Errorf("%s: no command above the table runs %s", title, n[1])
				}
			}
		}
	}
	if rows < 50 {
		t.Errorf("%d rows", rows)
	}
}

// testsOf are the tests in the packages that commands name.
func testsOf(t *testing.T, commands string) (names []string) {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	commands = strings.ReplaceAll(commands, "make soak", "go test ./test/e2e/devices")
	for line := range strings.Lines(commands) {
		words, dir := strings.Fields(line), root
		if at := slices.Index(words, "-C"); at >= 0 {
			dir = filepath.Join(root, words[at+1])
		}
		for _, word := range words {
			below, all := strings.CutSuffix(word, "/...")
			if !strings.HasPrefix(word, ".") {
				continue
			}
			patterns := []string{"*_test.go"}
			if all {
				patterns = append(patterns, "*/*_test.go")
			}
			for _, pattern := range patterns {
				files, err := filepath.Glob(filepath.Join(dir, below, pattern))
				if err != nil {
					t.Fatal(err)
				}
				for _, file := range files {
					text, err := os.ReadFile(file)
					if err != nil {
						t.Fatal(err)
					}
					for _, f := range function.FindAllStringSubmatch(string(text), -1) {
						names = append(names, f[1])
					}
				}
			}
		}
	}
	return names
}
