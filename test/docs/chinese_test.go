package docs

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// chineseDir has the translations of the pages of docs, under the same paths.
const chineseDir = "docs/zh-CN"

// A Chinese page has the headings of its English one, by level, and the same blocks of code.
func TestChinesePagesFollow(t *testing.T) {
	all := Pages(t, root)
	found := 0
	for name, chinese := range all {
		original := ""
		switch {
		case name == "README.zh-CN.md":
			original = "README.md"
		case strings.HasPrefix(name, chineseDir+"/"):
			original = "docs" + strings.TrimPrefix(name, chineseDir)
		default:
			continue
		}
		found++
		english, is := all[original]
		if !is {
			t.Errorf("%s: there is no %s", name, original)
			continue
		}
		if diff := cmp.Diff(levels(english), levels(chinese)); diff != "" {
			t.Errorf("%s: headings differ from %s (-want +got):\n%s", name, original, diff)
		}
		if diff := cmp.Diff(block.FindAllString(english, -1), block.FindAllString(chinese, -1)); diff != "" {
			t.Errorf("%s: blocks differ from %s (-want +got):\n%s", name, original, diff)
		}
	}
	if found < 4 {
		t.Errorf("%d Chinese pages", found)
	}
}

// levels are the marks of a page's headings, in order.
func levels(text string) []string {
	var found []string
	for _, h := range heading.FindAllStringSubmatch(block.ReplaceAllString(text, ""), -1) {
		found = append(found, strings.TrimSpace(h[1]))
	}
	return found
}
