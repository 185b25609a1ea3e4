package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// development has the table of documents, commands and tests.
const development = "docs/contribute/development.md"

// Each test in the table of documents exists. Each file of deploy/examples has a row; so has each file, and each section of
// commands.md, in the folder that HEDDLE_SAMPLES names.
func TestDocuments(t *testing.T) {
	_, table, _ := strings.Cut(Pages(t, root)[development], "\n| document | command | test |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var documents, named []string
	for row := range strings.Lines(table) {
		cells := strings.Split(strings.ReplaceAll(row, `\|`, ""), "|")
		if len(cells) != 5 {
			t.Fatalf("row %q", row)
		}
		tests := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(cells[3], -1)
		if len(tests) == 0 {
			t.Errorf("%s names no test", cells[1])
		}
		for _, test := range tests {
			named = append(named, test[1])
		}
		documents = append(documents, cells[1])
	}
	exist := tests(t)
	for _, test := range named {
		if !exist[test] {
			t.Errorf("%s names %s, which does not exist", development, test)
		}
	}
	has := func(what string) {
		t.Helper()
		if !slices.ContainsFunc(documents, func(row string) bool { return strings.Contains(row, what) }) {
			t.Errorf("%s has no row for %s", development, what)
		}
	}
	for _, name := range files(t, root+"/deploy/examples") {
		has("`" + name + "`")
	}
	samples := os.Getenv("HEDDLE_SAMPLES")
	if samples == "" {
		return
	}
	for _, name := range files(t, samples) {
		has("`" + name)
	}
	commands, err := os.ReadFile(filepath.Join(samples, "commands.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, section := range regexp.MustCompile(`(?m)^## ([^:(\n]*[^:(\s])`).FindAllStringSubmatch(string(commands), -1) {
		has("`commands.md`: " + section[1])
	}
}

// files are the regular files below a folder, by their path in it.
func files(t *testing.T, folder string) (names []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(folder), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, path)
		}
		return err
	})
	if err != nil || len(names) == 0 {
		t.Fatalf("%d files in %s: %v", len(names), folder, err)
	}
	return names
}

// tests are the names of the repository's tests.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, f := range function.FindAllStringSubmatch(string(text), -1) {
			found[f[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
