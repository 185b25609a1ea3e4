package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed page.html style.css search.js
var assets embed.FS

// site is what is read and written.
type site struct {
	root, to string
	// titles are of the pages, by their path in the repository.
	titles map[string]string
	nav    []group
	index  []entry
}

// group is a row of the README's table of documentation.
type group struct {
	Title string
	Links []link
}

type link struct{ Text, Path string }

// entry is a section as the search knows it.
type entry struct {
	Page    string `json:"page"`
	Heading string `json:"heading"`
	URL     string `json:"url"`
	Text    string `json:"text"`
}

// build writes the site and returns how many pages it has.
func build(root, to string) (int, error) {
	texts, err := read(root)
	if err != nil {
		return 0, err
	}
	s := &site{root: root, to: to, titles: map[string]string{}, nav: navigation(texts["README.md"])}
	for name, text := range texts {
		s.titles[name] = title(name, text)
	}
	layout, err := template.ParseFS(assets, "page.html")
	if err != nil {
		return 0, err
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		p, err := s.render(name, texts[name])
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		var out bytes.Buffer
		if err := layout.Execute(&out, p); err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		if err := s.write(htmlOf(name), out.Bytes()); err != nil {
			return 0, err
		}
	}
	return len(texts), s.writeAssets()
}

// read is every page's text by its path in the repository.
func read(root string) (map[string][]byte, error) {
	texts := map[string][]byte{}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && name != "docs" && !strings.HasPrefix(name, "docs/"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".md":
			return nil
		}
		texts[name], err = os.ReadFile(filepath.Join(root, name))
		return err
	})
	if err == nil && texts["README.md"] == nil {
		err = errors.New("README.md is not there")
	}
	return texts, err
}

// htmlOf is where a page is in the site.
func htmlOf(name string) string {
	if name == "README.md" {
		return "index.html"
	}
	return strings.TrimSuffix(name, ".md") + ".html"
}

// title is a page's first heading.
func title(name string, text []byte) string {
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte("# ")); ok {
			return strings.TrimSpace(string(rest))
		}
	}
	return name
}

// up leads from a page to the site's root.
func up(name string) string { return strings.Repeat("../", strings.Count(name, "/")) }

func (s *site) write(name string, content []byte) error {
	file := filepath.Join(s.to, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o644)
}

func (s *site) writeAssets() error {
	for _, name := range []string{"style.css", "search.js"} {
		content, err := assets.ReadFile(name)
		if err != nil {
			return err
		}
		if err := s.write(name, content); err != nil {
			return err
		}
	}
	index, err := json.Marshal(s.index)
	if err != nil {
		return err
	}
	// A script, since a page from a disk may read no other files.
	return s.write("index.js", slices.Concat([]byte("const sections = "), index, []byte(";\n")))
}
