package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// lineCounts are the lines of production Go.
type lineCounts struct {
	total, comment, code     int
	files, packages          int
	small, large             int // files under 60 and over 400 lines
	tests, testFiles         int
	functionP50, functionP90 int // lines per function
}

func countLines(root string, files []string) (lineCounts, error) {
	var c lineCounts
	folders := map[string]bool{}
	var functions []int
	for _, name := range files {
		if !strings.HasSuffix(name, ".go") {
			continue
		}
		src, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return c, err
		}
		n := strings.Count(string(src), "\n")
		if !isProduction(name) {
			if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "test/") {
				c.tests += n
				c.testFiles++
			}
			continue
		}
		c.total += n
		c.files++
		folders[filepath.Dir(name)] = true
		if n < 60 {
			c.small++
		}
		if n > 400 {
			c.large++
		}
		comment, code := kinds(src)
		c.comment += comment
		c.code += code
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, name, src, 0)
		if err != nil {
			return c, err
		}
		for _, d := range tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				functions = append(functions, fset.Position(f.End()).Line-fset.Position(f.Pos()).Line+1)
			}
		}
	}
	c.packages = len(folders)
	if slices.Sort(functions); len(functions) > 0 {
		c.functionP50, c.functionP90 = functions[len(functions)/2], functions[len(functions)*9/10]
	}
	return c, nil
}

// kinds counts the lines that hold a comment and no code, and those that hold
// code.
func kinds(src []byte) (comment, code int) {
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, scanner.ScanComments)
	comments, codes := map[int]bool{}, map[int]bool{}
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.SEMICOLON && text == "\n" {
			continue
		}
		marks := codes
		if tok == token.COMMENT {
			marks = comments
		}
		first := file.Line(pos)
		for i := range strings.Count(text, "\n") + 1 {
			marks[first+i] = true
		}
	}
	for line := range comments {
		if !codes[line] {
			comment++
		}
	}
	return comment, len(codes)
}

func (c lineCounts) print(out io.Writer) {
	row := func(name, format string, args ...any) {
		fmt.Fprintf(out, "%-46s "+format+"\n", append([]any{name}, args...)...)
	}
	row("lines of production Go", "%d", c.total)
	row("files, packages", "%d, %d", c.files, c.packages)
	row("files under 60 lines, over 400", "%d, %d", c.small, c.large)
	row("comment lines per line of code", "%.2f", float64(c.comment)/float64(max(c.code, 1)))
	row("lines of a function, p50 and p90", "%d, %d", c.functionP50, c.functionP90)
	row("lines of tests and harness", "%d in %d files", c.tests, c.testFiles)
}
