package httpapi

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// read is all files by name.
func read(t *testing.T, of fs.FS) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(of, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(of, name)
		files[path.Base(name)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestPolicyHolds finds what the policy would forbid, without a browser.
func TestPolicyHolds(t *testing.T) {
	forbidden := []struct {
		what string
		in   *regexp.Regexp
		in2  string // The extension.
	}{
		{"an inline script", regexp.MustCompile(`<script(?:[^>s]|s[^r])*>`), ".html"},
		{"an inline style", regexp.MustCompile(`<style|\sstyle=`), ".html"},
		{"an inline handler", regexp.MustCompile(`\son[a-z]+=`), ".html"},
		{"HTML made of text", regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function`), ".js"},
		{"a style attribute", regexp.MustCompile(`setAttribute\('style'|cssText`), ".js"},
		{"an import of CSS", regexp.MustCompile(`@import|url\(`), ".css"},
		{"another host", regexp.MustCompile(`(?:https?:)?//[a-z0-9-]+\.`), ""},
		{"an address that is not relative", regexp.MustCompile(`(?:href|src)="/|(?:fetch|EventSource)\(['` + "`" + `]/`), ""},
	}
	for name, text := range read(t, page) {
		text = strings.ReplaceAll(text, `xmlns="http://www.w3.org/2000/svg"`, "")
		for _, f := range forbidden {
			if f.in2 != "" && path.Ext(name) != f.in2 {
				continue
			}
			if at := f.in.FindString(text); at != "" {
				t.Errorf("%s has %s: %q", name, f.what, at)
			}
		}
	}
}

func TestEverythingReferredToIsThere(t *testing.T) {
	isUsed(t, read(t, page), regexp.MustCompile(`(?:href|src)="([a-z0-9.-]+\.(?:css|js|svg))"`), "index.html")
	isUsed(t, read(t, os.DirFS("ui/src")), regexp.MustCompile(`(?:from |import |import\()'\./([a-z0-9.-]+)'|@import "([a-z0-9.-]+)"`),
		"main.js", "main.css")
}

// isUsed fails the test where a file refers to none, or none refers to a file but to those
// that come first.
func isUsed(t *testing.T, files map[string]string, reference *regexp.Regexp, first ...string) {
	t.Helper()
	used := map[string]bool{}
	for _, name := range first {
		used[name] = true
	}
	for name, text := range files {
		for _, m := range reference.FindAllStringSubmatch(text, -1) {
			target := strings.Join(m[1:], "")
			used[target] = true
			if _, ok := files[target]; !ok {
				t.Errorf("%s refers to %s, which is not there", name, target)
			}
		}
	}
	for name := range files {
		if !used[name] {
			t.Errorf("nothing refers to %s", name)
		}
	}
}

// TestPageHasThePolicy: a server that sends no policy is not the end of it.
func TestPageHasThePolicy(t *testing.T) {
	// A meta element cannot restrict framing.
	inside, _, _ := strings.Cut(policy, "; frame-ancestors")
	if !strings.Contains(read(t, page)["index.html"], `content="`+inside+`"`) {
		t.Errorf("index.html does not have the policy %q", inside)
	}
}
