package docs

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/heddle-dev/heddle/api/wellknown"
)

var update = flag.Bool("update", false, "write "+Observability)

// The page has every reason of Events and every condition of package wellknown.
func TestEventsAndConditions(t *testing.T) {
	rows := [][]string{{"reason", "type", "about", "from", "when"}}
	var known []string
	for _, e := range wellknown.Events() {
		known = append(known, e.Reason)
		rows = append(rows, []string{"`" + e.Reason + "`", e.Type, e.Object, e.Component, e.When})
	}
	Section(t, root, Observability, "events", Table(rows...), *update)
	rows = [][]string{{"condition", "from", "`True`", "`False`"}}
	for _, c := range wellknown.Conditions() {
		known = append(known, c.Type)
		rows = append(rows, []string{"`" + c.Type + "`", c.Component, c.True, c.False})
	}
	Section(t, root, Observability, "conditions", Table(rows...), *update)
	for name, spec := range constants(t, "api/wellknown/events.go", "") {
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil || !slices.Contains(known, value) {
			t.Errorf("%s, %q, is not listed: %v", name, value, err)
		}
	}
}

// The page has every cause for which a device is in no pod's reach, with its comment.
func TestCauses(t *testing.T) {
	rows := [][]string{{"reason", "what it is"}}
	for _, file := range []string{"deviceplugin/health/health.go", "deviceplugin/agent/shortage.go"} {
		found := constants(t, file, "Cause")
		if len(found) < 7 {
			t.Errorf("%s: %d causes", file, len(found))
		}
		for name, spec := range found {
			text, is := strings.CutPrefix(strings.Join(strings.Fields(spec.Doc.Text()), " "), name+" is ")
			if !is {
				t.Errorf("%s has comment %q", name, spec.Doc.Text())
			}
			rows = append(rows, []string{"`" + name + "`", strings.TrimSuffix(text, ".")})
		}
	}
	slices.SortFunc(rows[1:], func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	Section(t, root, Observability, "causes", Table(rows...), *update)
}

// constants are those of a file, of a type if one is named.
func constants(t *testing.T, file, ofType string) map[string]*ast.ValueSpec {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), root+"/"+file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*ast.ValueSpec{}
	for _, d := range parsed.Decls {
		group, is := d.(*ast.GenDecl)
		if !is || group.Tok != token.CONST {
			continue
		}
		for _, s := range group.Specs {
			spec := s.(*ast.ValueSpec)
			name := ""
			switch typ := spec.Type.(type) {
			case *ast.Ident:
				name = typ.Name
			case *ast.SelectorExpr:
				name = typ.Sel.Name
			}
			if name == ofType {
				found[spec.Names[0].Name] = spec
			}
		}
	}
	return found
}
