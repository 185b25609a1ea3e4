//go:build linux

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Benchmarks and folders are named in strings here: they must follow code that moves.
func TestNamesExist(t *testing.T) {
	functions := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Benchmark\w+)\(`)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range function.FindAllStringSubmatch(string(text), -1) {
			functions[found[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	names, found := regexp.MustCompile(`"(Benchmark\w+)[/"]|"(\./[\w/-]+)"`), 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names.FindAllStringSubmatch(string(text), -1) {
			if found++; name[1] != "" && !functions[name[1]] {
				t.Errorf("%s: unknown benchmark %s", file, name[1])
			}
			if _, err := os.Stat(filepath.Join("../..", name[2])); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	if found < 20 {
		t.Errorf("found %d names", found)
	}
}
