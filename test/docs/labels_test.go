package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The table of labels, taints and annotations has every key of package wellknown below heddle.dev.
func TestLabelsTable(t *testing.T) {
	page := Pages(t, root)["docs/reference/labels-and-annotations.md"]
	files, err := filepath.Glob(root + "/api/wellknown/*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			sum, is := n.(*ast.BinaryExpr)
			if !is {
				return true
			}
			prefix, isName := sum.X.(*ast.Ident)
			literal, isText := sum.Y.(*ast.BasicLit)
			if !isName || prefix.Name != "Prefix" || !isText {
				return true
			}
			name, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			found++
			short := "`." + name[strings.LastIndex(name, ".")+1:] + "`" // As in `heddle.dev/rdma.hca.count`, `.rate`.
			if !strings.Contains(page, "`heddle.dev/"+name) && !strings.Contains(page, short) {
				t.Errorf("the page lacks heddle.dev/%s", name)
			}
			return true
		})
	}
	if found < 20 {
		t.Errorf("%d keys found", found)
	}
}
