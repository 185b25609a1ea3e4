//go:build e2e

package page

import (
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestSite: the documentation as a site, from a disk: each page has its place in the table beside
// it, a search leads to the section that it found, each link to a file and a heading.
func TestSite(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "run", "-C", "../../../tools/site", ".", "-to", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Run("links", func(t *testing.T) { linksLead(t, dir) })
	b := open(t, "file://"+dir)
	visit := func(path string) {
		act(b, chromedp.Navigate(b.url+path))
		b.until(`document.readyState === 'complete'`)
	}
	visit("/index.html")
	if n := value[int](b, `document.querySelectorAll('nav a').length`); n < 30 {
		t.Errorf("%d pages beside the text", n)
	}
	b.shot("site-light")
	b.shortcut("/")
	b.keys("b", "i", "t", " ", "e", "r", "r", "o", "r")
	b.until(`document.querySelectorAll('#hits [role=option]').length > 0`)
	want := value[string](b, `document.querySelectorAll('#hits a')[0].href`)
	b.keys(kb.ArrowDown, kb.ArrowDown, kb.ArrowUp)
	if got := value[string](b, `document.querySelector('#hits [aria-selected=true] a').href`); got != want {
		t.Errorf("%s is chosen, want the first, %s", got, want)
	}
	b.keys(kb.Enter)
	b.until("document.readyState === 'complete' && location.href === `" + want + "`")
	if !strings.Contains(want, ".html#") || !value[bool](b, `document.getElementById(decodeURIComponent(location.hash.slice(1))) !== null`) {
		t.Errorf("found %s, which is no section", want)
	}
	b.shortcut("/")
	b.keys("q", "q", "z", "x")
	b.until(`document.querySelector('#hits')?.textContent === 'Nothing found'`)

	visit("/docs/use-with/kueue.html")
	if got := value[string](b, `document.querySelector('nav [aria-current=page]')?.textContent ?? ''`); got != "Kueue" {
		t.Errorf("the page beside the text is %q", got)
	}
	b.clean()
	t.Run("axe", func(t *testing.T) {
		axe := axeSource(t)
		b.t = t
		for _, path := range []string{"/index.html", "/docs/sgpu.html"} {
			visit(path)
			check(b, axe, path)
		}
	})
}

// linksLead fails the test for a link within the site that leads to nothing.
func linksLead(t *testing.T, dir string) {
	t.Helper()
	pages := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(name) != ".html" {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		pages[name] = string(text)
		return err
	})
	must(t, err)
	reference := regexp.MustCompile(`(?:href|src)="([^":]*)"`)
	found := 0
	for name, text := range pages {
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			file, anchor, _ := strings.Cut(m[1], "#")
			anchor, err := url.PathUnescape(anchor)
			must(t, err)
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			found++
			if _, err := os.Stat(filepath.Join(dir, target)); err != nil {
				t.Errorf("%s: %s: %v", name, m[1], err)
			} else if page, isPage := pages[target]; isPage && anchor != "" && !strings.Contains(page, `id="`+anchor+`"`) {
				t.Errorf("%s: %s has no heading %s", name, target, anchor)
			}
		}
	}
	if len(pages) < 40 || found < 1000 {
		t.Errorf("%d pages with %d links", len(pages), found)
	}
}
