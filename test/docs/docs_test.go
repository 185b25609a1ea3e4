// Package docs checks the documentation's links and commands, and that its Chinese pages follow the English ones.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const root = "../.."

var (
	block   = regexp.MustCompile("(?ms)^```.*?^```$")
	heading = regexp.MustCompile(`(?m)^(#+) (.*)$`)
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	target  = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
	made    = regexp.MustCompile(`(?m)(?:^|` + "`" + `)make ([a-z0-9 -]+)`)
)

// pages are the Markdown files that people read, by their path in the repository.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	add := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		found[name] = string(text)
	}
	top, err := filepath.Glob(root + "/*.md")
	if err != nil {
		t.Fatal(err)
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
		t.Fatal(err)
	}
	return found
}

// A link within the repository ends at a file, and at a heading of it.
func TestLinks(t *testing.T) {
	all := pages(t)
	for name, text := range all {
		for _, l := range link.FindAllStringSubmatch(block.ReplaceAllString(text, ""), -1) {
			if strings.Contains(l[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(l[1], "#")
			file := name
			if path != "" {
				file = filepath.Join(filepath.Dir(name), path)
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s: %s: %v", name, l[1], err)
			} else if page, is := all[file]; is && anchor != "" && !slices.Contains(anchors(page), anchor) {
				t.Errorf("%s: %s has no heading #%s", name, file, anchor)
			}
		}
	}
}

// anchors are what GitHub makes of a page's headings.
func anchors(text string) []string {
	var found []string
	for _, h := range heading.FindAllStringSubmatch(block.ReplaceAllString(text, ""), -1) {
		found = append(found, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r) || unicode.IsNumber(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, h[2]))
	}
	return found
}

// What a page has readers make is a target of the Makefile.
func TestMakeTargets(t *testing.T) {
	text, err := os.ReadFile(root + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, found := range target.FindAllStringSubmatch(string(text), -1) {
		targets[found[1]] = true
	}
	found := 0
	for name, page := range pages(t) {
		for _, m := range made.FindAllStringSubmatch(page, -1) {
			for word := range strings.FieldsSeq(m[1]) {
				found++
				if !targets[word] {
					t.Errorf("%s: make %s: the Makefile has no target %s", name, m[1], word)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("%d targets found", found)
	}
}
