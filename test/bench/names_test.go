//go:build linux

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Benchmarks and folders are named in strings here: they go on existing when
// code moves.
func TestNamesExist(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	functions := benchmarkFunctions(t, "../..")
	found := 0
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			function, _, _ := strings.Cut(text, "/")
			switch {
			case strings.HasPrefix(text, "Benchmark") && len(text) > len("Benchmark") && !strings.Contains(text, " "):
				if found++; !functions[function] {
					t.Errorf("%s: there is no %s", name, function)
				}
			case strings.HasPrefix(text, "./") && !strings.Contains(text, "..."):
				if _, err := os.Stat(filepath.Join("../..", text)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			return true
		})
	}
	if found < 10 {
		t.Errorf("found %d benchmarks", found)
	}
}

// benchmarkFunctions are those of all test files below a folder.
func benchmarkFunctions(t *testing.T, root string) map[string]bool {
	t.Helper()
	functions := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "func Benchmark"); ok {
				name, _, _ := strings.Cut(rest, "(")
				functions["Benchmark"+name] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return functions
}
