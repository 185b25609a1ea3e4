package docs

import (
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
	pinned  = regexp.MustCompile(`uses: [a-z/-]+@[0-9a-f]{40} # v[0-9.]+\n$`)
	made    = regexp.MustCompile(`(?m)(?:^|` + "`" + `)make ([a-z0-9 -]+)`)
)

// A link within the repository ends at a file, and at a heading of it.
func TestLinks(t *testing.T) {
	all := Pages(t, root)
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
	for name, page := range Pages(t, root) {
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

// A tag of an action can be moved to other code, a commit cannot.
func TestActionsArePinned(t *testing.T) {
	files, err := filepath.Glob(root + "/.github/workflows/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "uses:") && !pinned.MatchString(line) {
				t.Errorf("%s: %s", file, line)
			}
		}
	}
}
