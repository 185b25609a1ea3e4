package docs

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write "+Observability)

// The page has every reason of Events and every condition of package wellknown: its
// groups of constants begin with who records them, and about what.
func TestEventsAndConditions(t *testing.T) {
	events, conditions := [][]string{{"reason", "type", "about", "from", "when"}}, [][]string{{"condition", "from", "meaning"}}
	group := regexp.MustCompile(`^(Warnings|Notices) of (heddle-\S+) about (.*)\.$`)
	constants(t, "api/wellknown/events.go", func(about string, spec *ast.ValueSpec) {
		name := spec.Names[0].Name
		value := "`" + strings.Trim(spec.Values[0].(*ast.BasicLit).Value, `"`) + "`"
		from := group.FindStringSubmatch(about)
		switch {
		case from != nil:
			typ := map[string]string{"Warnings": "Warning", "Notices": "Normal"}[from[1]]
			events = append(events, []string{value, typ, from[3], from[2], sentence(t, spec, name+": ")})
		case strings.HasPrefix(name, "Condition"):
			program, meaning, _ := strings.Cut(sentence(t, spec, name+" of "), ": ")
			conditions = append(conditions, []string{value, program, meaning})
		default:
			t.Errorf("%s is in a group of which the comment is %q", name, about)
		}
	})
	Section(t, root, Observability, "events", Table(events...), *update)
	Section(t, root, Observability, "conditions", Table(conditions...), *update)
}

// sentence is a constant's comment without its beginning and the period.
func sentence(t *testing.T, spec *ast.ValueSpec, begin string) string {
	t.Helper()
	text, is := strings.CutPrefix(strings.Join(strings.Fields(spec.Doc.Text()), " "), begin)
	if !is {
		t.Errorf("%s has comment %q", spec.Names[0].Name, spec.Doc.Text())
	}
	return strings.TrimSuffix(text, ".")
}

// constants calls f with each of a file, and the comment of its group.
func constants(t *testing.T, file string, f func(about string, spec *ast.ValueSpec)) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), root+"/"+file, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range parsed.Decls {
		if group, is := d.(*ast.GenDecl); is && group.Tok == token.CONST {
			for _, s := range group.Specs {
				f(strings.TrimSpace(group.Doc.Text()), s.(*ast.ValueSpec))
			}
		}
	}
}
