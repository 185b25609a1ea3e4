package main

import (
	"bufio"
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// vocabulary is words.txt: what is replaced, by what, and where it may stay.
//
//go:embed words.txt
var vocabulary string

// rule is one word or phrase.
type rule struct {
	word, instead string
	pattern       *regexp.Regexp // of a text rule
	name          bool           // applies to words inside Go names instead
}

// exception lets the rules pass in files that match a path pattern.
type exception struct{ path, word string }

// finding is one place with a word that the vocabulary replaces.
type finding struct {
	file          string
	line          int
	word, instead string
}

func (f finding) String() string {
	return fmt.Sprintf("%s:%d: %q: use %s", f.file, f.line, f.word, f.instead)
}

// readVocabulary parses words.txt. A line is one of
//
//	text WORD: INSTEAD      the word or phrase in comments, strings and documents
//	name WORD: INSTEAD      the word as part of a Go name
//	keep PATH: WORD         the word stays in files that match the path; * is every word
func readVocabulary(text string) (rules []rule, keep []exception, err error) {
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		kind, rest, _ := strings.Cut(line, " ")
		left, right, ok := strings.Cut(rest, ": ")
		if !ok {
			return nil, nil, fmt.Errorf("words.txt:%d: no \": \" in %q", n, line)
		}
		switch kind {
		case "text":
			pattern := `(?i)\b` + strings.ReplaceAll(left, " ", `\s+`) + `\b`
			rules = append(rules, rule{word: left, instead: right, pattern: regexp.MustCompile(pattern)})
		case "name":
			rules = append(rules, rule{word: left, instead: right, name: true})
		case "keep":
			keep = append(keep, exception{left, right})
		default:
			return nil, nil, fmt.Errorf("words.txt:%d: %q is none of text, name, keep", n, kind)
		}
	}
	return rules, keep, lines.Err()
}

func kept(keep []exception, file, word string) bool {
	return slices.ContainsFunc(keep, func(e exception) bool {
		match, _ := path.Match(e.path, file)
		match = match || strings.HasSuffix(e.path, "/") && strings.HasPrefix(file, e.path)
		return match && (e.word == "*" || e.word == word)
	})
}

// checkWords looks at every Go file, document, chart file and page asset.
func checkWords(root string, files []string) ([]finding, error) {
	rules, keep, err := readVocabulary(vocabulary)
	if err != nil {
		return nil, err
	}
	var all []finding
	for _, file := range files {
		switch filepath.Ext(file) {
		case ".go", ".md", ".yaml", ".yml", ".tpl", ".txt", ".js", ".css", ".html", ".sh", ".svg":
		default:
			continue
		}
		src, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		found := textFindings(file, string(src), rules)
		if strings.HasSuffix(file, ".go") {
			names, err := nameFindings(file, src, rules)
			if err != nil {
				return nil, err
			}
			found = append(found, names...)
		}
		for _, f := range found {
			if !kept(keep, file, f.word) {
				all = append(all, f)
			}
		}
	}
	return all, nil
}

func textFindings(file, src string, rules []rule) (found []finding) {
	src = strings.ReplaceAll(src, "http.NoBody", "http._NoBody") // A name of net/http's.
	for i := range rules {
		if rules[i].name {
			continue
		}
		for _, at := range rules[i].pattern.FindAllStringIndex(src, -1) {
			line := 1 + strings.Count(src[:at[0]], "\n")
			found = append(found, finding{file, line, rules[i].word, rules[i].instead})
		}
	}
	return found
}

// nameFindings checks the names that a file declares.
func nameFindings(file string, src []byte, rules []rule) (found []finding, err error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, src, 0)
	if err != nil {
		return nil, err
	}
	declared := func(id *ast.Ident) {
		if id == nil {
			return
		}
		words := split(id.Name)
		for i := range rules {
			if rules[i].name && slices.Contains(words, rules[i].word) {
				found = append(found, finding{file, fset.Position(id.Pos()).Line, rules[i].word, rules[i].instead})
			}
		}
	}
	declared(tree.Name)
	ast.Inspect(tree, func(n ast.Node) bool {
		switch d := n.(type) {
		case *ast.FuncDecl:
			declared(d.Name)
		case *ast.TypeSpec:
			declared(d.Name)
		case *ast.Field:
			for _, id := range d.Names {
				declared(id)
			}
		case *ast.ValueSpec:
			for _, id := range d.Names {
				declared(id)
			}
		case *ast.AssignStmt:
			if d.Tok == token.DEFINE {
				for _, e := range d.Lhs {
					if id, ok := e.(*ast.Ident); ok {
						declared(id)
					}
				}
			}
		case *ast.RangeStmt:
			if d.Tok == token.DEFINE {
				for _, e := range []ast.Expr{d.Key, d.Value} {
					if id, ok := e.(*ast.Ident); ok {
						declared(id)
					}
				}
			}
		}
		return true
	})
	return found, nil
}

// split cuts a Go name into its words, in lower case: tellNode is tell, node.
func split(name string) (words []string) {
	runes := []rune(name)
	start := 0
	for i := 1; i <= len(runes); i++ {
		if i < len(runes) {
			upper, before := unicode.IsUpper(runes[i]), unicode.IsUpper(runes[i-1])
			// A new word begins at a capital before a small letter, but not in UUIDs.
			next := i+1 < len(runes) && unicode.IsLower(runes[i+1]) && string(runes[i+1:]) != "s"
			if runes[i] != '_' && (!upper || before && !next) {
				continue
			}
		}
		if word := strings.ToLower(strings.Trim(string(runes[start:i]), "_")); word != "" {
			words = append(words, word)
		}
		start = i
	}
	return words
}
