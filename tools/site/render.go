package main

import (
	"bytes"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
)

// page is what page.html has.
type page struct {
	Title, Up, Lang string
	Nav             []group
	Body            template.HTML
}

var (
	row    = regexp.MustCompile(`(?m)^\| ([^|]+) \| (.+) \|$`)
	linked = regexp.MustCompile(`\[([^\]]+)\]\(([^)#]+\.md)\)`)
)

// navigation is the README's table of documentation.
func navigation(readme []byte) (groups []group) {
	_, table, _ := strings.Cut(string(readme), "\n## Documentation\n")
	for _, r := range row.FindAllStringSubmatch(table, -1) {
		g := group{Title: r[1]}
		for _, l := range linked.FindAllStringSubmatch(r[2], -1) {
			g.Links = append(g.Links, link{l[1], l[2]})
		}
		if len(g.Links) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

// reachable has a block that is wider than the page scrolled by keys too, and no header
// without words.
var reachable = strings.NewReplacer("<pre>", `<pre tabindex="0">`, "<th></th>", "<td></td>")

// render makes a page of its text, and adds its sections to the index.
func (s *site) render(name string, source []byte) (*page, error) {
	markdown := goldmark.New(
		goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(html.WithUnsafe()), // The pages are the project's own.
	)
	ids := parser.NewContext(parser.WithIDs(anchors{}))
	doc := markdown.Parser().Parse(text.NewReader(source), parser.WithContext(ids))
	err := ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		var err error
		switch n := n.(type) {
		case *ast.Link:
			n.Destination, err = s.follow(name, n.Destination)
		case *ast.Image:
			n.Destination, err = s.follow(name, n.Destination)
		}
		return ast.WalkContinue, err
	})
	if err != nil {
		return nil, err
	}
	s.addSections(name, doc, source)
	var body bytes.Buffer
	if err := markdown.Renderer().Render(&body, source, doc); err != nil {
		return nil, err
	}
	p := &page{Title: s.titles[name], Up: up(name), Lang: "en"}
	p.Body = template.HTML(reachable.Replace(body.String())) //nolint:gosec // The project's own pages.
	if strings.Contains(name, "zh-CN") {
		p.Lang = "zh-CN"
	}
	for _, g := range s.nav {
		own := group{Title: g.Title}
		for _, l := range g.Links {
			own.Links = append(own.Links, link{l.Text, p.Up + htmlOf(l.Path)})
		}
		p.Nav = append(p.Nav, own)
	}
	return p, nil
}

// follow is where a link of a page leads in the site: to another page, or to a file of the
// repository, which is copied. A folder is shown as its path only.
func (s *site) follow(name string, destination []byte) ([]byte, error) {
	target, anchor, _ := strings.Cut(string(destination), "#")
	if target == "" || strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return destination, nil
	}
	if anchor != "" {
		anchor = "#" + anchor
	}
	file := path.Join(path.Dir(name), target)
	if _, isPage := s.titles[file]; isPage {
		return []byte(up(name) + htmlOf(file) + anchor), nil
	}
	info, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(file)))
	if err != nil {
		return nil, fmt.Errorf("link to %s: %w", destination, err)
	}
	if info.IsDir() {
		return []byte(up(name) + file + "/"), s.copyFolder(file)
	}
	content, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(file)))
	if err != nil {
		return nil, err
	}
	return []byte(up(name) + file + anchor), s.write(file, content)
}

// copyFolder writes a list of a folder's files, and copies them.
func (s *site) copyFolder(folder string) error {
	var list bytes.Buffer
	fmt.Fprintf(&list, "<!doctype html>\n<title>%s</title>\n<h1>%[1]s</h1>\n<ul>\n", template.HTMLEscapeString(folder))
	from := os.DirFS(filepath.Join(s.root, filepath.FromSlash(folder)))
	err := fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "<li><a href=\"%s\">%[1]s</a></li>\n", template.HTMLEscapeString(name))
		return s.write(path.Join(folder, name), content)
	})
	if err != nil {
		return err
	}
	list.WriteString("</ul>\n")
	return s.write(path.Join(folder, "index.html"), list.Bytes())
}

// addSections adds what stands below each heading of a page.
func (s *site) addSections(name string, doc ast.Node, source []byte) {
	at := entry{Page: s.titles[name], Heading: s.titles[name], URL: htmlOf(name)}
	var words strings.Builder
	end := func() {
		at.Text = strings.Join(strings.Fields(words.String()), " ")
		s.index = append(s.index, at)
		words.Reset()
	}
	for n := doc.FirstChild(); n != nil; n = n.NextSibling() {
		h, isHeading := n.(*ast.Heading)
		if !isHeading || h.Level == 1 {
			if !isHeading {
				plain(&words, n, source)
			}
			continue
		}
		end()
		id, _ := h.AttributeString("id")
		at.URL = fmt.Sprintf("%s#%s", htmlOf(name), id)
		var heading strings.Builder
		plain(&heading, h, source)
		at.Heading = strings.TrimSpace(heading.String())
	}
	end()
}

// plain writes the words of a node.
func plain(to *strings.Builder, n ast.Node, source []byte) {
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // It fails only if the function does.
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Text:
			to.Write(n.Segment.Value(source))
			if n.SoftLineBreak() || n.HardLineBreak() {
				to.WriteByte(' ')
			}
		case *ast.CodeSpan, *ast.Emphasis, *ast.Link:
		default:
			to.WriteByte(' ')
			if n.Type() == ast.TypeBlock && n.IsRaw() {
				for i := range n.Lines().Len() {
					line := n.Lines().At(i)
					to.Write(line.Value(source))
				}
			}
		}
		return ast.WalkContinue, nil
	})
}

// anchors are what GitHub makes of headings, so that a link is right in both places.
type anchors map[string]int

// Generate implements [parser.IDs].
func (a anchors) Generate(value []byte, _ ast.NodeKind) []byte {
	id := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r) || unicode.IsNumber(r) || r == '-' || r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(string(value)))
	n := a[id]
	a[id]++
	if n > 0 {
		return fmt.Appendf(nil, "%s-%d", id, n)
	}
	return []byte(id)
}

// Put implements [parser.IDs].
func (a anchors) Put(value []byte) { a[string(value)]++ }
