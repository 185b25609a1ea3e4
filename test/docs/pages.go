// Package docs checks the documentation's links and commands, and that its Chinese pages follow the English ones.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Pages are the Markdown files that people read, by their path in the repository,
// which is at root.
func Pages(tb testing.TB, root string) map[string]string {
	tb.Helper()
	found := map[string]string{}
	add := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			tb.Fatal(err)
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			tb.Fatal(err)
		}
		found[name] = string(text)
	}
	top, err := filepath.Glob(root + "/*.md")
	if err != nil {
		tb.Fatal(err)
	}
	for _, path := range top {
		add(path)
	}
	err = filepath.WalkDir(root+"/docs", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			add(path)
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return found
}
